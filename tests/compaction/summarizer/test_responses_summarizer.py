"""Summaries by a provider of the Responses API, and of conversations that a client of that API began."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from app.compaction.summarizer.summarizer_request_body import CachedViewPrompt, CallBudget, build_summarizer_body
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.compaction.summarizer.summary_request import NoUsableSummary, SummaryRequest
from app.context.plan.policy import ContextPolicy, SummarizerPolicy, make_policy
from app.dialects.summarizer_fields import build_cached_prefix_fields
from app.errors import GatewayError, UpstreamRefused
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.protocols.responses_provider import ResponsesProvider
from app.upstream.provider_contract import ModelDeployment, ProviderQuirks
from app.upstream.routing.router import RetryPolicy, Router
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute
from tests.compaction.simulated_compaction import COUNT, OneWindow, log_of, summary_request_for, talk
from tests.live import ScriptedUpstream, completion, serving
from tests.support.responses_upstream import ResponsesUpstream, ScriptedResponse, reasoning_item, respond

GOOD = "Colleague lockers were discussed at length."
TOOLS = b'[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{}}}}]'
SEALED = b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"of another"}'
CALL = b'{"type":"function_call","id":"fc_1","call_id":"call_1","name":"look","arguments":"{}"}'
RESPONSES_VIEW = [
    b'["Be brief."]',
    b'[{"role":"user","content":[{"type":"input_text","text":"Look."}]}]',
    b"[" + SEALED + b"," + CALL + b"]",
    b'[{"type":"function_call_output","call_id":"call_1","output":"A locker."}]',
]
CHAT_CALL = b'{"id":"call_1","type":"function","function":{"name":"look","arguments":"{}"}}'
CHAT_VIEW = [
    b'{"role":"system","content":"Be brief."}',
    b'{"role":"user","content":"Look."}',
    b'{"role":"assistant","content":null,"tool_calls":[' + CHAT_CALL + b"]}",
    b'{"role":"tool","tool_call_id":"call_1","content":"A locker."}',
]


def request_for(**fields: Any) -> SummaryRequest:
    policy = make_policy(summarizer=fields.pop("summarizer", SummarizerPolicy()))
    return summary_request_for(log_of(talk(10)), policy=policy, model="m", **fields)


@asynccontextmanager
async def generator(upstream: ScriptedUpstream) -> AsyncIterator[SummaryGenerator]:
    provider_class = ResponsesProvider if isinstance(upstream, ResponsesUpstream) else OpenAIProvider
    async with serving(upstream, lifespan="off") as address:
        provider = provider_class("p", f"{address}/v1", "secret")
        clock = asyncio.get_running_loop().time
        router = Router(
            {"m": ModelRoute((ConfiguredDeployment("p"),))},
            {"p": provider},
            RetryPolicy(attempts=1),
            sleep=asyncio.sleep,
            clock=clock,
            random=lambda: 0.0,
        )
        yield SummaryGenerator(
            router=router, windows=OneWindow(8192), counter_for=lambda encoding: COUNT, monotonic=clock
        )
        await provider.aclose()


async def test_a_summary_of_a_transcript() -> None:
    upstream = ResponsesUpstream(respond(reasoning_item("Hm."), GOOD))
    async with generator(upstream) as summaries:
        summary = await summaries.generate_summary(request_for())

    assert GOOD in summary.text
    assert summary.usage is not None
    assert summary.usage["prompt_tokens"] > 0
    assert (upstream.paths, upstream.refusals) == (["/v1/responses"], [])
    (body,) = upstream.requests
    assert body.keys() == {"model", "store", "max_output_tokens", "input", "stream"}
    assert body["max_output_tokens"] == 400


@pytest.mark.parametrize("view", [CHAT_VIEW, RESPONSES_VIEW])
async def test_a_summary_of_the_conversation_that_the_model_has_read(view: list[bytes]) -> None:
    upstream = ResponsesUpstream(respond(GOOD))
    fields = build_cached_prefix_fields({"tools": TOOLS, "prompt_cache_key": b'"k"'})
    async with generator(upstream) as summaries:
        await summaries.generate_summary(request_for(view_prefix=view, fields=fields))

    assert upstream.refusals == []
    (body,) = upstream.requests
    assert "Be brief." in (body.get("instructions") or str(body["input"][0]["content"]))
    *shown, instruction = body["input"]
    assert [item.get("type", "message") for item in shown[-2:]] == ["function_call", "function_call_output"]
    assert "summary" in str(instruction["content"]).lower()
    assert (body["tool_choice"], body["tools"][0]["name"], body["prompt_cache_key"]) == ("none", "look", "k")
    assert "of another" not in str(body)


@pytest.mark.parametrize("view", [CHAT_VIEW, RESPONSES_VIEW])
async def test_a_chat_provider_reads_conversations_of_both_protocols(view: list[bytes]) -> None:
    upstream = ScriptedUpstream(completion(GOOD))
    async with generator(upstream) as summaries:
        await summaries.generate_summary(request_for(view_prefix=view))

    (body,) = upstream.requests
    assert upstream.paths == ["/v1/chat/completions"]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert body["messages"][2]["tool_calls"][0]["id"] == "call_1"
    if view is CHAT_VIEW:
        assert upstream.bodies[0].count(b",".join(CHAT_VIEW)) == 1


@pytest.mark.parametrize(
    "failing",
    [
        ScriptedResponse(error={"code": "server_error", "message": "Broken."}),
        respond("Cut off", incomplete="content_filter"),
        respond(""),
    ],
)
async def test_an_answer_that_is_no_summary_is_refused(failing: ScriptedResponse) -> None:
    async with generator(ResponsesUpstream(default=lambda _: failing)) as summaries:
        with pytest.raises((NoUsableSummary, GatewayError)):
            await summaries.generate_summary(request_for())


async def test_a_model_whose_reasoning_used_up_the_answer_gets_more_room() -> None:
    upstream = ResponsesUpstream(respond(reasoning_item("Hm."), incomplete="max_output_tokens"), respond(GOOD))
    async with generator(upstream) as summaries:
        assert GOOD in (await summaries.generate_summary(request_for())).text

    first, second = upstream.requests
    assert second["max_output_tokens"] > first["max_output_tokens"]


async def test_a_refusal_keeps_its_status_and_words() -> None:
    async with generator(ResponsesUpstream(window=10)) as summaries:
        with pytest.raises(UpstreamRefused) as caught:
            await summaries.generate_summary(request_for())

    assert caught.value.status == 400
    assert b"context_length_exceeded" in caught.value.raw_body


def test_a_prompt_without_a_form_in_the_protocol_is_no_usable_one() -> None:
    provider = ResponsesProvider("p", "http://127.0.0.1:1/v1")
    prompt = CachedViewPrompt("Sum up.", "all", CHAT_VIEW, 400, {"tools": b'"none at all"'})
    with pytest.raises(NoUsableSummary, match="protocol"):
        build_summarizer_body(prompt, ContextPolicy(), ModelDeployment(provider, "m"), CallBudget(8192, 400, COUNT))


def test_quirks_change_messages_of_both_protocols_for_a_chat_provider() -> None:
    provider = OpenAIProvider("p", "http://127.0.0.1:1/v1")
    deployment = ModelDeployment(provider, "m", quirks=ProviderQuirks(flatten_text=True, system_messages="into_user"))
    for view in (CHAT_VIEW, RESPONSES_VIEW):
        prompt = CachedViewPrompt("Sum up.", "all", view, 400)
        body = orjson.loads(build_summarizer_body(prompt, ContextPolicy(), deployment, CallBudget(8192, 400, COUNT)))
        roles = [message["role"] for message in body["messages"]]
        assert all(first != second for first, second in itertools.pairwise(roles))
        assert roles[0] == "user"
