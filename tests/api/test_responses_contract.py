"""Whole answers and streams of the Responses API are what the types of the official `openai` package say, whatever the
model answers and whichever protocol its provider speaks. A later read of the response shows the same."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

import httpx
import pytest

from tests.live import (
    DONE,
    DROP,
    TEST_DEPENDENCIES,
    Reply,
    ScriptedUpstream,
    chunk,
    completion,
    gateway,
    serving,
    stream,
    usage_chunk,
)
from tests.support.gateway import is_summary
from tests.support.raw_http import SUMMARY, long_talk
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import accumulate_events, validate_event, validate_response
from tests.support.responses_upstream import (
    ResponsesUpstream,
    ScriptedResponse,
    build_events,
    build_response,
    custom_call_item,
    function_call_item,
    number_events,
    reasoning_item,
    refusal_item,
    render_event,
    respond,
    text_item,
)

HEADERS: Final = {"authorization": "Bearer sk-one"}
FUNCTION: Final = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CUSTOM: Final = {"type": "custom", "name": "patch"}
TOOLS: Final = [FUNCTION, CUSTOM]
ALL_FIELDS: Final[dict[str, Any]] = {
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "instructions": "Answer briefly.",
    "max_output_tokens": 99,
    "max_tool_calls": 3,
    "metadata": {"topic": "demo"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "key-1",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "user-1",
    "service_tier": "auto",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "tools": TOOLS,
    "top_logprobs": 2,
    "top_p": 0.9,
    "truncation": "auto",
    "user": "user-1",
}
APPLIED_FIELDS: Final[dict[str, Any]] = {
    "background": False,
    "completed_at": 1_700_000_009,
    "max_tool_calls": None,
    "reasoning": {"effort": "medium", "summary": "detailed"},
    "service_tier": "flex",
    "temperature": 0.7,
    "top_p": 0.98,
}
"""What a provider of the Responses API says that it has applied."""


@asynccontextmanager
async def responses_client(upstream: ScriptedUpstream, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose provider speaks the protocol of `upstream`."""
    protocol = "responses" if isinstance(upstream, ResponsesUpstream) else "openai"
    async with serving(upstream, lifespan="off") as address:
        provider = {"base_url": f"{address}/v1", "api_key": "sk-upstream", "protocol": protocol}
        async with (
            gateway(address, providers={"upstream": provider}, **options) as base_url,
            httpx.AsyncClient(base_url=base_url, headers=HEADERS, timeout=30) as client,
        ):
            yield client


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A whole answer; its type is checked."""
    answer = await client.post("/responses", json={"model": "m", "input": "Hi.", "tools": TOOLS, **fields})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    validate_response(response)
    return response


async def ask_for_stream(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of an answer; their types and their order are checked."""
    body = {"model": "m", "input": "Hi.", "tools": TOOLS, "stream": True, **fields}
    answer = await client.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    events = read_events(answer.content)
    for event in events:
        validate_event(event)
    check_event_order(events)
    accumulate_events(events)
    return events


async def read(client: httpx.AsyncClient, response_id: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(f"/responses/{response_id}", params=query)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    validate_response(response)
    return response


@dataclass(frozen=True)
class Case:
    """An answer of both providers, and the events that a client sees of it between beginning and end.

    Attributes:
        deltas: a chat provider's deltas; its whole answer is one message.
        message: the message of a chat provider's whole answer.
        answer: of a provider of the Responses API.
        events: the events of the stream, without `response.` and with equal neighbours counted once.
        native_events: those of a provider of the Responses API, if they differ.
        finish: the reason with which a chat provider ends.
    """

    deltas: Sequence[dict[str, Any]]
    message: dict[str, Any]
    answer: ScriptedResponse
    events: Sequence[str]
    native_events: Sequence[str] | None = None
    finish: str = "stop"
    status: str = "completed"


TEXT_EVENTS: Final = (
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
    *("content_part.done", "output_item.done"),
)
CALL_EVENTS: Final = (
    *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
)
CUSTOM_EVENTS: Final = (
    *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
)
REFUSAL_EVENTS: Final = (
    *("output_item.added", "content_part.added", "refusal.delta", "refusal.done", "content_part.done"),
    "output_item.done",
)
REASONING_EVENTS: Final = (
    *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
    "output_item.done",
)
SUMMARY_EVENTS: Final = (
    *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
    *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
)
PARALLEL_EVENTS: Final = (
    *("output_item.added", "function_call_arguments.delta", "output_item.added", "function_call_arguments.delta"),
    *("function_call_arguments.done", "output_item.done", "function_call_arguments.done", "output_item.done"),
)


def chat_call(index: int, call_id: str, arguments: str = "") -> dict[str, Any]:
    """The first delta of a call."""
    function = {"name": "look", "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def more_arguments(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def whole_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


CUSTOM_CALL: Final = {"id": "call_c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
CASES: Final = {
    "text": Case(
        deltas=[{"content": "Hello"}, {"content": ", world."}],
        message={"content": "Hello, world."},
        answer=respond("Hello, world."),
        events=TEXT_EVENTS,
    ),
    "function call": Case(
        deltas=[chat_call(0, "call_a"), more_arguments(0, '{"x":'), more_arguments(0, "1}")],
        message={"content": None, "tool_calls": [whole_call("call_a", '{"x":1}')]},
        answer=respond(function_call_item("look", '{"x":1}', "call_a")),
        events=CALL_EVENTS,
        finish="tool_calls",
    ),
    "parallel calls": Case(
        deltas=[
            chat_call(0, "call_a", '{"x":'),
            chat_call(1, "call_b", '{"y":'),
            more_arguments(0, "1}"),
            more_arguments(1, "2}"),
        ],
        message={"content": None, "tool_calls": [whole_call("call_a", '{"x":1}'), whole_call("call_b", '{"y":2}')]},
        answer=respond(
            function_call_item("look", '{"x": 1}', "call_a"),
            function_call_item("look", '{"y": 2}', "call_b"),
            interleaves=True,
        ),
        events=PARALLEL_EVENTS,
        native_events=CALL_EVENTS,
        finish="tool_calls",
    ),
    "custom tool call": Case(
        deltas=[{"tool_calls": [{"index": 0, **CUSTOM_CALL}]}],
        message={"content": None, "tool_calls": [CUSTOM_CALL]},
        answer=respond(custom_call_item("patch", "*** Begin", "call_c")),
        events=CUSTOM_EVENTS,
        finish="tool_calls",
    ),
    "reasoning": Case(
        deltas=[{"reasoning_content": "First "}, {"reasoning_content": "this."}, {"content": "Done."}],
        message={"content": "Done.", "reasoning_content": "First this."},
        answer=respond(reasoning_item("First this.", "Then that."), "Done."),
        events=(*REASONING_EVENTS, *TEXT_EVENTS),
        native_events=(*SUMMARY_EVENTS[:-1], *SUMMARY_EVENTS[1:], *TEXT_EVENTS),
    ),
    "reasoning summary": Case(
        deltas=[
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "First ", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "this.", "index": 0}]},
            {"content": "Done."},
        ],
        message={
            "content": "Done.",
            "reasoning_details": [{"type": "reasoning.summary", "summary": "First this.", "index": 0}],
        },
        answer=respond(reasoning_item("First this.", texts=["I think."]), "Done."),
        events=(*SUMMARY_EVENTS, *TEXT_EVENTS),
        native_events=(*SUMMARY_EVENTS[:-1], *REASONING_EVENTS[1:], *TEXT_EVENTS),
    ),
    "refusal": Case(
        deltas=[{"refusal": "I will"}, {"refusal": " not."}],
        message={"content": None, "refusal": "I will not."},
        answer=respond(refusal_item("I will not.")),
        events=REFUSAL_EVENTS,
    ),
    "incomplete": Case(
        deltas=[{"content": "It was"}],
        message={"content": "It was"},
        answer=respond(text_item("It was", status="incomplete"), incomplete="max_output_tokens"),
        events=TEXT_EVENTS,
        finish="length",
        status="incomplete",
    ),
}


def build_upstream(case: Case, protocol: str, *, streams: bool, **fields: Any) -> ScriptedUpstream:
    """A provider that answers with the case. `fields` are further ones of a response object."""
    if protocol == "responses":
        return ResponsesUpstream(replace(case.answer, fields={**case.answer.fields, **fields}))
    if streams:
        pieces = [chunk({"role": "assistant", "content": None}), *map(chunk, case.deltas)]
        return ScriptedUpstream(Reply(pieces=[*pieces, chunk({}, case.finish), usage_chunk(), DONE]))
    reply = completion(**case.message)
    reply.body["choices"][0]["finish_reason"] = case.finish
    return ScriptedUpstream(reply)


def build_stream_pieces(answer: ScriptedResponse) -> list[bytes]:
    """The events of a Responses provider's stream, each with its bytes."""
    items = [{"id": f"msg_{index}", **item} for index, item in enumerate(answer.items)]
    response = build_response(answer, {"model": "m"}, "resp_provider", items, 5)
    return [render_event(event) for event in number_events(build_events(response, answer))]


def list_types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [kind for kind, _ in itertools.groupby(event["type"].removeprefix("response.") for event in events)]


both_protocols = pytest.mark.parametrize("protocol", ["chat", "responses"])
whole_and_streamed = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


@both_protocols
@pytest.mark.parametrize("name", CASES)
async def test_events_come_in_the_documented_order(name: str, protocol: str) -> None:
    case = CASES[name]
    async with responses_client(build_upstream(case, protocol, streams=True)) as client:
        events = await ask_for_stream(client)
    expected = case.events if protocol == "chat" else case.native_events or case.events
    assert list_types(events) == ["created", "in_progress", *expected, case.status]


@whole_and_streamed
@both_protocols
@pytest.mark.parametrize("name", CASES)
async def test_a_later_read_shows_the_answer_again(name: str, protocol: str, streams: bool) -> None:
    case = CASES[name]
    async with responses_client(build_upstream(case, protocol, streams=streams)) as client:
        made = (await ask_for_stream(client))[-1]["response"] if streams else await ask(client)
        found = await read(client, made["id"])
    assert made["status"] == case.status
    assert found == made


@whole_and_streamed
@both_protocols
@pytest.mark.parametrize("fields", [{}, ALL_FIELDS], ids=["defaults", "all fields"])
async def test_a_later_read_repeats_the_request_as_the_answer_did(
    fields: dict[str, Any], protocol: str, streams: bool
) -> None:
    upstream = build_upstream(CASES["reasoning"], protocol, streams=streams, **APPLIED_FIELDS)
    seconds = itertools.count(int(time.time()))
    ticking = replace(TEST_DEPENDENCIES, now=lambda: datetime.fromtimestamp(next(seconds), UTC))
    async with responses_client(upstream, dependencies=ticking) as client:
        made = (await ask_for_stream(client, **fields))[-1]["response"] if streams else await ask(client, **fields)
        found = await read(client, made["id"], include=fields.get("include", []))
    assert found == made
    kept_by_gateway = ("instructions", "max_output_tokens", "metadata", "prompt_cache_key", "safety_identifier", "user")
    for name in (*kept_by_gateway, "tool_choice", "tools", "truncation"):
        assert made[name] == {"tools": TOOLS, **fields}.get(name, made[name])
    applied = APPLIED_FIELDS if protocol == "responses" else {}
    assert {name: made[name] for name in applied} == applied
    if protocol == "chat":
        assert [made[name] for name in ("temperature", "top_p")] == [
            fields.get("temperature", 1),
            fields.get("top_p", 1),
        ]


BROKEN_STREAMS: Final = {
    "chat": [chunk({"role": "assistant", "content": "Half"}), chunk({"content": " an"})],
    "responses": build_stream_pieces(respond("Half an answer."))[:6],
}
CHAT_ERROR: Final = b'data: {"error":{"message":"Too many.","code":"rate_limit_exceeded"}}\n\n'
FAILED_ANSWER: Final = respond("Half an", error={"code": "rate_limit_exceeded", "message": "Too many."})
FAILURES: Final[dict[tuple[str, str], tuple[Reply | ScriptedResponse, str, str]]] = {
    ("chat", "broken off"): (Reply(pieces=[*BROKEN_STREAMS["chat"], DROP]), "incomplete", "server_error"),
    ("chat", "an error"): (Reply(pieces=[*BROKEN_STREAMS["chat"], CHAT_ERROR]), "incomplete", "rate_limit_exceeded"),
    ("responses", "broken off"): (Reply(pieces=[*BROKEN_STREAMS["responses"], DROP]), "incomplete", "server_error"),
    ("responses", "an error"): (FAILED_ANSWER, "completed", "rate_limit_exceeded"),
}
"""By protocol and cause: the provider's reply, the status of the item that has come, and the code of the failure."""


@pytest.mark.parametrize(("protocol", "cause"), FAILURES)
async def test_a_failure_in_the_stream_is_its_last_event(protocol: str, cause: str) -> None:
    reply, item_status, code = FAILURES[protocol, cause]
    upstream = ResponsesUpstream(reply) if protocol == "responses" else ScriptedUpstream(cast(Reply, reply))
    async with responses_client(upstream) as client:
        events = await ask_for_stream(client)
        failed = events[-1]["response"]
        read_again = await client.get(f"/responses/{failed['id']}")
        next_body = {"model": "m", "input": "Go on.", "previous_response_id": failed["id"]}
        continued = await client.post("/responses", json=next_body)
    types = list_types(events)
    # An item that broke off is not done: else the client would keep it, and get it again with its retry.
    begun = [name for name in TEXT_EVENTS if not name.endswith(".done")]
    assert types == ["created", "in_progress", *(begun if item_status == "incomplete" else TEXT_EVENTS), "failed"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", code)
    assert [(item["status"], item["content"][0]["text"]) for item in failed["output"]] == [(item_status, "Half an")]
    assert read_again.status_code == 404
    assert (continued.status_code, continued.json()["error"]["code"]) == (400, "previous_response_not_found")


@both_protocols
async def test_the_progress_of_a_compaction_comes_before_the_answer(protocol: str) -> None:
    def answer_chat(body: dict[str, Any]) -> Reply:
        return completion(SUMMARY) if is_summary(body) else stream("Fine", ".")

    def answer_responses(body: dict[str, Any]) -> ScriptedResponse:
        return respond(SUMMARY if "material to be summarized" in json.dumps(body["input"]) else "Fine.")

    upstream = (
        ScriptedUpstream(default=answer_chat) if protocol == "chat" else ResponsesUpstream(default=answer_responses)
    )
    async with responses_client(upstream) as client:
        events = await ask_for_stream(client, input=long_talk())
        found = await read(client, events[-1]["response"]["id"])
    assert list_types(events) == ["created", "in_progress", *TEXT_EVENTS, "completed"]
    progress = [event["context_event"]["type"] for event in events if "context_event" in event]
    assert progress == ["compaction_started", "compaction_completed"]
    assert events[-1]["response"]["context_status"] == "summarized"
    assert found == events[-1]["response"]


LATER: Final[dict[str, dict[str, Any]]] = {
    "background": {"background": True},
    "prompt": {"prompt": {"id": "pmpt_1"}},
}


@pytest.mark.parametrize("param", LATER)
async def test_what_comes_later_is_refused_in_words_that_say_so(param: str) -> None:
    upstream = ScriptedUpstream()
    async with responses_client(upstream) as client:
        answer = await client.post("/responses", json={"model": "m", "input": "Hi.", **LATER[param]})
    check_later(answer, param)
    assert upstream.requests == []


async def test_endpoints_that_come_later_are_refused_in_words_that_say_so() -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with responses_client(ScriptedUpstream()) as client:
        made = await ask(client)
        check_later(await client.get(f"/responses/{made['id']}", params={"stream": "true"}), "stream")
        check_later(await client.get(f"/responses/{made['id']}", params={"starting_after": 1}), "starting_after")
        check_later(await client.get("/responses"), None)
        check_later(await client.get("/responses", headers=upgrade), None)


def check_later(answer: httpx.Response, param: str | None) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)
    assert "not supported yet" in error["message"]
