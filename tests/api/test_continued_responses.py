"""Requests that continue a response over HTTP: retries, two at once, several end users, and what is refused."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, world
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import long_talk, summarizing

TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
RULES: Any = {"role": "system", "content": "Be brief."}
UNKNOWN = f"resp_{'0' * 48}"


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def calling(call_id: str) -> Reply:
    """An answer that calls a function."""
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return completion(None, tool_calls=[call])


async def create(w: World, given: Any, *, headers: Any = None, key: str = "sk-one", **fields: Any) -> httpx.Response:
    return await w.client.post(
        f"{w.base_url}/responses",
        json={"model": "m", "input": given, **fields},
        headers={"authorization": f"Bearer {key}", **(headers or {})},
    )


async def answer(w: World, given: Any, **options: Any) -> dict[str, Any]:
    """The body of an answer that must succeed."""
    response = await create(w, given, **options)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def read_text(body: dict[str, Any]) -> str:
    return str(body["output"][-1]["content"][0]["text"])


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def sent_roles(upstream: ScriptedUpstream) -> list[list[str]]:
    return [[message["role"] for message in body["messages"]] for body in upstream.requests]


@pytest.mark.parametrize("way", ["conversation", "previous_response_id"])
async def test_a_run_that_is_sent_again_reaches_the_model_once(way: str) -> None:
    upstream = ScriptedUpstream(completion("Hi."), calling("c1"), calling("c2"), completion("Done."))
    async with world(upstream) as w:
        first = await answer(w, [RULES, asked("Hello")])
        fields = {way: first["conversation_id"] if way == "conversation" else first["id"], "tools": [TOOL]}
        run: list[Any] = [RULES, asked("Look")]
        for call_id in ("c1", "c2"):
            called = await answer(w, run, **fields)
            assert called["output"][-1]["call_id"] == call_id
            kept = {name: called["output"][-1][name] for name in ("type", "call_id", "name", "arguments")}
            run += [output(call_id, call_id)] if way == "conversation" else [kept, output(call_id, call_id)]
        last = await answer(w, run, **fields)
        assert read_text(last) == "Done."
        assert len(w.conversations()) == 1
    asking = ["system", "user", "assistant", "user"]
    step = ["assistant", "tool"]
    assert sent_roles(upstream) == [["system", "user"], asking, [*asking, *step], [*asking, *step, *step]]


def echo(body: dict[str, Any]) -> Reply:
    """Answers with the last message in capitals."""
    text = body["messages"][-1]["content"].upper()
    return stream(text) if body.get("stream") else completion(text)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("way", ["retry_count", "idempotency_key"])
async def test_a_retry_after_a_response_gets_the_same_answer_once(way: str, is_stream: bool) -> None:
    """Also from another replica, and although the first attempt began a branch."""
    is_keyed = way == "idempotency_key"
    first_headers = {"idempotency-key": "one"} if is_keyed else {}
    retry_headers = first_headers if is_keyed else {"x-stainless-retry-count": "1"}
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    upstream = ScriptedUpstream(default=echo)
    async with world(upstream, store=store) as w:
        first = await answer(w, "hello")
        await answer(w, "one", previous_response_id=first["id"])
        given: dict[str, Any] = {"given": "two", "previous_response_id": first["id"], "stream": is_stream}
        attempts = [await create(w, headers=first_headers, **given), await create(w, headers=retry_headers, **given)]
    async with world(upstream, store=store) as w:
        attempts.append(await create(w, headers=retry_headers, **given))
        assert len(w.conversations()) == 2
    assert len(upstream.requests) == 3
    bodies = [read_events(one)[-1]["response"] if is_stream else one.json() for one in attempts]
    assert [read_text(body) for body in bodies] == ["TWO"] * 3
    assert len({body["id"] for body in bodies}) == 1
    assert len({body["conversation_id"] for body in bodies}) == 1
    assert [one.headers.get("idempotent-replayed") for one in attempts] == [None, "true", "true"]


async def test_two_at_once_are_two_branches() -> None:
    async with world(ScriptedUpstream(default=echo)) as w:
        first = await answer(w, "hello")
        pair = await asyncio.gather(*(answer(w, text, previous_response_id=first["id"]) for text in "ab"))
        assert [read_text(body) for body in pair] == ["A", "B"]
        assert len({body["conversation_id"] for body in pair}) == len(w.conversations()) == 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_cannot_be_continued_is_refused_before_the_first_byte(is_stream: bool) -> None:
    async with world(ScriptedUpstream(default=echo)) as w:
        first = await answer(w, "hello", user="anna")
        deleted, erased = await answer(w, "one"), await answer(w, "two")
        for path in (f"responses/{deleted['id']}", f"conversations/{erased['conversation_id']}"):
            removed = await w.client.delete(f"{w.base_url}/{path}", headers={"authorization": "Bearer sk-one"})
            assert removed.status_code == 200, removed.text
        unknown: list[dict[str, Any]] = [
            {"previous_response_id": UNKNOWN},
            {"previous_response_id": first["id"], "key": "sk-two"},
            {"previous_response_id": first["id"], "safety_identifier": "bert"},
            {"previous_response_id": deleted["id"]},
            {"previous_response_id": erased["id"]},
        ]
        messages = []
        for fields in unknown:
            response = await create(w, "again", stream=is_stream, **fields)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (
                400,
                "previous_response_not_found",
                "previous_response_id",
            )
            messages.append(error["message"].replace(fields["previous_response_id"], "ID"))
        assert len(set(messages)) == 1
        both = {"previous_response_id": first["id"], "conversation": first["conversation_id"]}
        response = await create(w, "again", stream=is_stream, **both)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "previous_response_id")
        given = [RULES, asked("One"), asked("Two"), output("c9", "x")]
        for fields in ({}, {"previous_response_id": first["id"]}, {"conversation": first["conversation_id"]}):
            response = await create(w, given, stream=is_stream, **fields)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "input[3].call_id")
        count = len(w.upstream.requests)
        continued = await answer(w, "again", previous_response_id=first["id"], user="anna")
        assert (read_text(continued), len(w.upstream.requests)) == ("AGAIN", count + 1)


async def test_instructions_hold_for_one_response_only() -> None:
    upstream = ScriptedUpstream(default=echo)
    async with world(upstream) as w:
        body = await answer(w, [RULES, asked("one")], instructions="You are a pirate.")
        for instructions in ("Sing.", None):
            body = await answer(w, "two", previous_response_id=body["id"], instructions=instructions)
            assert body["instructions"] == instructions
    systems = [
        [message["content"] for message in request["messages"] if message["role"] == "system"]
        for request in upstream.requests
    ]
    assert systems == [["You are a pirate.", "Be brief."], ["Sing.", "Be brief."], ["Be brief."]]


@pytest.mark.parametrize("pieces", [[DONE], [DROP], [b"data: {broken\n\n"]], ids=["early", "cut", "no_json"])
async def test_a_stream_that_fails_ends_with_a_failed_response_that_cannot_be_continued(pieces: list[Any]) -> None:
    half = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), *pieces])
    async with world(ScriptedUpstream(completion("Hi."), half, default=echo)) as w:
        first = await answer(w, "hello")
        response = await create(w, "one", previous_response_id=first["id"], stream=True)
        events = read_events(response)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        failed = events[-1]["response"]
        assert (events[-1]["type"], failed["status"]) == ("response.failed", "failed")
        assert failed["error"]["code"]
        # The half answer stays in the log it was written to. What is asked again does not follow it.
        again = await answer(w, "one", previous_response_id=first["id"])
        texts = [message["content"] for message in await w.log(again["conversation_id"])]
        assert texts == ["hello", "Hi.", "one", "ONE"]
        response = await create(w, "more", previous_response_id=failed["id"])
        assert (response.status_code, response.json()["error"]["code"]) == (400, "previous_response_not_found")


REFUSALS: Any = {
    "too_long": (
        Reply(
            {"error": {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}}, 400
        ),
        "context_length_exceeded",
    ),
    "down": (Reply({"error": {"message": "Broken.", "type": "server_error", "code": None}}, 500), "server_error"),
    "limited": (
        Reply({"error": {"message": "Slow down.", "type": "requests", "code": "rate_limit_exceeded"}}, 429),
        "rate_limit_exceeded",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("way", ["previous_response_id", "conversation"])
async def test_an_error_after_a_compaction_has_been_announced_is_a_failed_response(refusal: str, way: str) -> None:
    reply, code = REFUSALS[refusal]
    is_broken = False
    upstream = summarizing(lambda _: reply if is_broken else completion("Hi."))
    async with world(upstream) as w:
        talk = long_talk(turns=26)
        first = await answer(w, talk)
        is_broken = True
        fields = {way: first["conversation_id"] if way == "conversation" else first["id"]}
        response = await create(w, "And so on " * 1500, stream=True, **fields)
        events = read_events(response)
        kinds = [event["type"] for event in events]
        assert "context_event" in response.text
        assert (kinds[0], kinds[-1]) == ("response.created", "response.failed")
        assert events[-1]["response"]["error"]["code"] == code
