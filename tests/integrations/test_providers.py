"""Pages about providers: their configuration as it stands, in front of an upstream that behaves as they say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.__main__ import main
from tests.integrations.pages import Page
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, gateway, serving, stream
from tests.support.gateway import assistant, call, result, system, user
from tests.support.messages_encoding import encode_message_events
from tests.support.messages_world import SAID, MessagesUpstream

PAGES = ("anthropic", "azure", "gemini", "llama-cpp", "ollama", "openai", "openrouter", "other-providers", "vllm")
BODY: Mapping[str, Any] = {"max_completion_tokens": 50}


def configuration(page: str) -> dict[str, Any]:
    (text,) = Page(page).blocks("yaml")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


class Told:
    """A gateway that is configured as a page says, apart from the address; and what its upstream was told."""

    def __init__(self, upstream: ScriptedUpstream, client: httpx.AsyncClient, model: str) -> None:
        self.upstream, self._client, self._model = upstream, client, model

    async def say(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        answer = await self.post(messages, **fields)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def post(self, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
        return await self._client.post("/chat/completions", json={"model": self._model, "messages": messages, **fields})

    @property
    def last(self) -> dict[str, Any]:
        return self.upstream.requests[-1]


@asynccontextmanager
async def told(page: str, model: str, *replies: Reply, **scripted: Any) -> AsyncIterator[Told]:
    values = configuration(page)
    speaks_messages = any(one.get("protocol") == "anthropic" for one in values["providers"].values())
    upstream = MessagesUpstream(*replies) if speaks_messages else ScriptedUpstream(*replies, **scripted)
    async with serving(upstream, lifespan="off") as address:
        for provider in values["providers"].values():
            _, question, query = provider["base_url"].partition("?")
            provider["base_url"] = f"{address}/v1{question}{query}"
            provider["api_key"] = "sk-upstream"
        async with (
            gateway(address, **values) as base_url,
            httpx.AsyncClient(base_url=base_url, timeout=30) as client,
        ):
            yield Told(upstream, client, model)


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_configuration_passes_check_config(page: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("\n".join(Page(page).blocks("yaml")))
    assert main(["check-config", str(file)]) == 0


async def test_vllm_gets_one_leading_system_message_and_turns_that_alternate() -> None:
    async with told("vllm", "mistral-small") as one:
        await one.say([system("Be brief."), user("Hi"), system("Be kind."), user("Well?")])
        assert [message["role"] for message in one.last["messages"]] == ["system", "user"]
        assert one.last["model"] == "mistralai/Mistral-Small-3.1-24B-Instruct-2503"


@pytest.mark.parametrize(
    ("page", "model", "status", "error"),
    [
        (
            "vllm",
            "m",
            400,
            {"object": "error", "message": "This model's maximum context length is 3000 tokens. However, you requested "
             "5000 tokens (4900 in the messages, 100 in the completion).", "code": 400},
        ),
        (
            "llama-cpp",
            "m",
            200,
            {"error": {"code": 400, "message": "request (5000 tokens) exceeds the available context size (3000 tokens)",
                       "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 3000}},
        ),
        (
            "gemini",
            "m",
            400,
            [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message":
                        "The input token count (5000) exceeds the maximum number of tokens allowed (3000)."}}],
        ),
        (
            "anthropic",
            "m",
            400,
            {"error": {"type": "invalid_request_error", "message": "prompt is too long: 5000 tokens > 3000 maximum"}},
        ),
        (
            "openai",
            "gpt-4o-mini",
            400,
            {"error": {"message": "This model's maximum context length is 3000 tokens. However, your messages resulted "
                       "in 5000 tokens. Please reduce the length of the messages.", "type": "invalid_request_error",
                       "param": "messages", "code": "context_length_exceeded"}},
        ),
    ],
    ids=["vllm", "llama-cpp", "gemini", "anthropic", "openai"],
)  # fmt: skip
async def test_too_long_a_prompt_is_recognised_and_sent_again_smaller(
    page: str, model: str, status: int, error: Any
) -> None:
    history = [
        message
        for number in range(9)
        for message in (user(f"Parcel {number}. " + "It was a long day. " * 90), assistant("Noted."))
    ]
    async with told(page, model, Reply(error, status=status)) as one:
        body = await one.say([*history, user("Well?")])
        assert body["context"]["recovered"]
        assert body["context"]["window"] <= 3000


async def test_a_prompt_that_ollama_cut_is_told_of() -> None:
    long = [user("It was a long day. " * 500)]
    async with told("ollama", "llama3.2", completion(prompt_tokens=1026), completion(prompt_tokens=2500)) as one:
        (warning,) = (await one.say(long, **BODY))["context"]["warnings"]
        assert "1026 tokens" in warning
        assert one.last["max_tokens"] == 50
        assert (await one.say(long))["context"]["warnings"] == []


@pytest.mark.parametrize(
    ("page", "comment"),
    [("llama-cpp", b":\n\n"), ("openrouter", b": OPENROUTER PROCESSING\n\n"), ("anthropic", b": ping\n\n")],
)
async def test_comments_do_not_reach_the_client(page: str, comment: bytes) -> None:
    message: dict[str, Any] = {
        "id": "msg_1",
        "content": [SAID],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"output_tokens": 1},
    }
    events = encode_message_events(message) if page == "anthropic" else stream("Fine.").pieces or ()
    pieces = [comment, *events]
    pieces.insert(3, comment)
    async with told(page, "m", Reply(pieces=pieces)) as one:
        answer = await one.post([user("Hi")], stream=True)
        assert not re.search("^:", answer.text, re.MULTILINE)
        assert "Fine." in answer.text


async def test_an_error_of_openrouters_in_mid_stream_is_an_error() -> None:
    failed = chunk({"content": ""}, "error", error={"code": 502, "message": "Provider disconnected"})
    pieces = [chunk({"role": "assistant", "content": "Half an"}), failed, DONE]
    async with told("openrouter", "m", Reply(pieces=pieces)) as one:
        events = (await one.post([user("Hi")], stream=True)).text.strip().split("\n\n")
        assert '"error":' in events[-2]
        assert events[-1] == "data: [DONE]"
        whole = await one.post([user("Hi")])
        assert whole.status_code == 200


async def test_an_error_of_openrouters_with_status_200_is_no_answer() -> None:
    refused = Reply({"error": {"code": 502, "message": "Provider returned error"}})
    async with told("openrouter", "m", *[refused] * 9) as one:
        assert (await one.post([user("Hi")])).status_code >= 500


async def test_azure_gets_its_key_in_its_header_and_its_version_in_the_query() -> None:
    async with told("azure", "gpt-4o-by-deployment") as one:
        answer = await one.post([user("Hi")], stream=True)
        assert answer.status_code == 200
        assert one.upstream.headers[-1]["api-key"] == "sk-upstream"
        assert "authorization" not in one.upstream.headers[-1]
        assert "stream_options" not in one.last


async def test_azures_first_chunk_without_choices_is_passed_on() -> None:
    first = b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}\n\n'
    async with told("azure", "gpt-4o", Reply(pieces=[first, *(stream("Fine.").pieces or ())])) as one:
        answer = await one.post([user("Hi")], stream=True)
        assert "prompt_filter_results" in answer.text.split("\n\n")[0]
        assert "Fine." in answer.text


SIGNED = {**call("look", call_id=""), "extra_content": {"google": {"thought_signature": "s+/="}}}


@pytest.mark.parametrize(
    ("page", "model", "answered"),
    [
        ("gemini", "m", {"tool_calls": [SIGNED]}),
        ("openrouter", "m", {"tool_calls": [call("look")], "reasoning_details": [{"type": "reasoning.text"}]}),
        ("other-providers", "deepseek-reasoner", {"tool_calls": [call("look")], "reasoning_content": "Hm."}),
    ],
    ids=["gemini", "openrouter", "deepseek"],
)
async def test_what_clients_drop_goes_back_where_it_is_wanted(page: str, model: str, answered: dict[str, Any]) -> None:
    async with told(page, model, completion(None, **answered)) as one:
        await one.say([user("Where?")])
        bare = assistant(None, tool_calls=[call("look", call_id=answered["tool_calls"][0]["id"])])
        await one.say([user("Where?"), bare, result("7", call_id=answered["tool_calls"][0]["id"])])
        _, said, told_back = one.last["messages"]
        for name in answered.keys() - {"tool_calls"}:
            assert said[name] == answered[name]
        assert said["tool_calls"][0].get("extra_content") == answered["tool_calls"][0].get("extra_content")
        assert said["tool_calls"][0]["id"] == told_back["tool_call_id"] != ""


async def test_mistral_gets_ids_and_turns_that_it_takes() -> None:
    async with told("other-providers", "mistral-large-latest") as one:
        called = assistant(None, tool_calls=[call("look", call_id="call_of_another_kind")])
        await one.say(
            [user("Where?"), called, result("7", call_id="call_of_another_kind"), user("Never mind.")], seed=1
        )
        roles = [message["role"] for message in one.last["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        assert re.fullmatch("[a-zA-Z0-9]{9}", one.last["messages"][2]["tool_call_id"])
        assert "seed" not in one.last


async def test_groq_gets_no_property_that_it_does_not_know_and_its_rate_limit_is_none_of_length() -> None:
    limited = Reply(
        {"error": {"message": "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000"}},
        status=413,
    )
    async with told("other-providers", "llama-3.3-70b-versatile", completion(), limited) as one:
        said = assistant("Fine.", reasoning_content="Hm.", refusal=None, annotations=[])
        await one.say([user("Hi"), said, user("Well?")])
        assert one.last["messages"][1] == {"role": "assistant", "content": "Fine."}
        assert (await one.post([user("Again")])).status_code == 413
