"""Summaries of conversations with the Responses API: by the model that answers, and by one of the other protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.raw_http import long_talk
from tests.support.responses_upstream import (
    ENCRYPTED_INCLUDE,
    ResponsesUpstream,
    ScriptedResponse,
    function_call_item,
    reasoning_item,
    respond,
)
from tests.support.responses_world import call_output, message, responses_world

EITHER = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
FORMS = pytest.mark.parametrize("form", ["auto", "transcript"])
SUMMARIZER_WORDS = "All of it is material to be summarized."
SUMMARY = "They spoke about lockers and gates."
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
TOOLS = [LOOK, SEARCH, {"type": "custom", "name": "patch"}]
MODELS = {
    "m": {"provider": "upstream", "context_window": 8192},
    "s": {"provider": "second", "context_window": 32_768},
}
REQUEST: dict[str, Any] = {"instructions": "Be brief.", "tools": TOOLS, "include": [ENCRYPTED_INCLUDE]}


def is_summary(body: dict[str, Any]) -> bool:
    return SUMMARIZER_WORDS in json.dumps(body.get("input", body.get("messages")))


def answer_natively(body: dict[str, Any]) -> ScriptedResponse:
    return respond(reasoning_item("Hm."), SUMMARY) if is_summary(body) else respond(reasoning_item("Hm."), "Fine.")


def answer_by_chat(body: dict[str, Any]) -> Reply:
    if is_summary(body):
        return completion(SUMMARY, prompt_tokens=3000)
    return stream("Fine.") if body.get("stream") else completion("Fine.")


def talk() -> list[dict[str, Any]]:
    """A history with calls of tools in its old part, over an 8k window."""
    reasoning = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "brought"}
    called = [
        message("Look."),
        reasoning,
        {"type": "function_call", "id": "fc_0", "call_id": "c0", "name": "look", "arguments": "{}"},
        call_output("c0", "A locker."),
        message("It is a locker.", "assistant"),
    ]
    return [*called, *(message(one["content"], one["role"]) for one in long_talk(40))]


def policies(form: str, model: str = "same") -> dict[str, Any]:
    return {"additive": {"summarizer": {"form": form, "model": model}}}


def find_conversation(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """The one call that has the conversation itself; the other ranges are sent as transcripts, all at the same time."""
    (whole,) = (body for body in summaries if len(body["input" if "input" in body else "messages"]) > 1)
    return whole


def shown_summary(upstream: ScriptedUpstream) -> str:
    """The first messages of the last view."""
    body = [body for body in upstream.requests if not is_summary(body)][-1]
    return json.dumps((body["input"] if "input" in body else body["messages"])[:2])


@EITHER
@FORMS
async def test_a_responses_provider_summarizes_its_own_conversation(streamed: bool, form: str) -> None:
    upstream = ResponsesUpstream(default=answer_natively)
    upstream.issued_secrets.add("brought")
    async with responses_world(upstream, policies=policies(form)) as w:
        got = await w.respond_either(talk(), stream=streamed, **REQUEST)
    assert upstream.refusals == []
    assert (got["context_status"], got["context"]["compaction"]["outcome"]) == ("summarized", "completed")
    assert SUMMARY in shown_summary(upstream)
    summaries = [body for body in upstream.requests if is_summary(body)]
    assert summaries
    assert all(body["store"] is False and "messages" not in body for body in summaries)
    if form == "auto":
        # The view of an earlier request, so that the provider's cache is used.
        whole = find_conversation(summaries)
        assert (whole["instructions"], LOOK in whole["tools"]) == ("Be brief.", True)
    assert got["context"]["compaction"]["usage"]["prompt_tokens"] > 1000


@EITHER
@FORMS
async def test_a_chat_model_summarizes_for_a_responses_provider(streamed: bool, form: str) -> None:
    upstream, second = ResponsesUpstream(default=answer_natively), ScriptedUpstream(default=answer_by_chat)
    upstream.issued_secrets.add("brought")
    async with responses_world(upstream, second, models=MODELS, policies=policies(form, "s")) as w:
        got = await w.respond_either(talk(), stream=streamed, **REQUEST)
    assert upstream.refusals == []
    assert not any(map(is_summary, upstream.requests))
    assert got["context"]["compaction"]["outcome"] == "completed"
    assert SUMMARY in shown_summary(upstream)
    for body in second.requests:
        assert "brought" not in json.dumps(body)
        assert not {"input", "include", "instructions", "store"} & body.keys()
        assert all(tool["type"] in ("function", "custom") and tool["type"] in tool for tool in body.get("tools", ()))


@EITHER
@FORMS
async def test_a_chat_provider_summarizes_for_a_responses_client(streamed: bool, form: str) -> None:
    upstream = ScriptedUpstream(default=answer_by_chat)
    async with responses_world(upstream, policies=policies(form)) as w:
        got = await w.respond_either(talk(), stream=streamed, **REQUEST)
    assert got["context"]["compaction"]["outcome"] == "completed"
    assert SUMMARY in shown_summary(upstream)
    summaries = [body for body in upstream.requests if is_summary(body)]
    for body in summaries:
        assert not {"input", "include", "instructions", "store"} & body.keys()
    if form == "auto":
        whole = find_conversation(summaries)
        assert whole["messages"][0] == {"role": "system", "content": "Be brief."}
        assert [tool["type"] for tool in whole["tools"]] == ["function", "custom"]
        assert whole["messages"][2]["tool_calls"][0]["id"] == "c0"


@EITHER
@FORMS
async def test_a_responses_provider_summarizes_for_a_chat_client(streamed: bool, form: str) -> None:
    upstream = ResponsesUpstream(default=answer_natively)
    async with responses_world(upstream, policies=policies(form)) as w:
        answer = await w.post(long_talk(40), stream=streamed)
    assert answer.status_code == 200
    assert "Fine." in answer.text
    assert upstream.refusals == []
    assert SUMMARY in shown_summary(upstream)


@EITHER
async def test_a_request_without_a_form_in_chat_is_summarized_too(streamed: bool) -> None:
    """The forced hosted tool cannot be said to a chat model; the summarizer needs no tools."""
    upstream, second = ResponsesUpstream(default=answer_natively), ScriptedUpstream(default=answer_by_chat)
    upstream.issued_secrets.add("brought")
    async with responses_world(upstream, second, models=MODELS, policies=policies("auto", "s")) as w:
        got = await w.respond_either(talk(), stream=streamed, **REQUEST, tool_choice={"type": "file_search"})
    assert upstream.refusals == []
    assert got["context"]["compaction"]["outcome"] == "completed"
    assert upstream.requests[-1]["tool_choice"] == {"type": "file_search"}


async def test_a_summarizer_that_calls_a_tool_is_asked_again_or_replaced() -> None:
    upstream = ResponsesUpstream(
        default=lambda body: respond(function_call_item("look", "{}", "c9")) if is_summary(body) else respond("Fine.")
    )
    upstream.issued_secrets.add("brought")
    async with responses_world(upstream) as w:
        got = await w.respond(talk(), **REQUEST)
    assert upstream.refusals == []
    assert got["context"]["compaction"]["outcome"] == "failed"
