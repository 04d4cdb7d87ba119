"""Streams that break: the client is told by an error frame, never by a clean end."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.dialects.chat.stream_splicer import ChatStreamSplicer
from app.pipeline.turn.resolved_request import UNANSWERED_MESSAGES
from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk
from tests.support.gateway import World, user, world
from tests.support.raw_http import chunks, long_talk, summarizing, text_of

RESET_AFTER_SECONDS = 0.05
"""So that what was sent before it is read before it."""
KEYS = {"message", "type", "param", "code"}
BEGUN = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Half an"}))
ERROR = b'data: {"error":{"message":"overloaded","type":"server_error","code":529,"x":1}}\n\n'

BREAKS: dict[str, tuple[Any, ...]] = {
    "ends without a reason": (),
    "ends with done but no reason": (DONE,),
    "connection cut": (DROP,),
    "garbage": (b"data: <html>\n\n",),
    "garbage in the piece of a good chunk": (chunk({"content": ""}) + b"data: {]\n\n" + chunk({"content": "never"}),),
    "not an object": (b"data: 5\n\n",),
    "error chunk": (ERROR, chunk({"content": "never"}), DONE),
    "error chunk with choices": (
        (
            b'data: {"id":"c","error":{"code":502,"message":"overloaded"},'
            b'"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}\n\n'
        ),
        DONE,
    ),
    "error that is a text": (b'data: {"error":"overloaded"}\n\n',),
    "error object": (b'data: {"object":"error","message":"overloaded","type":"x","code":1}\n\n',),
    "error in a list": (b'data: [{"error":{"message":"overloaded"}}]\n\n',),
    "named error": (b'event: error\ndata: {"message":"overloaded"}\n\n',),
    "half an event": (b'data: {"id":"c","choices":[{"ind',),
    "one choice of two unfinished": (
        b'data: {"id":"c","choices":[{"index":1,"delta":{"content":"b"}}]}\n\n',
        chunk({}, "stop"),
        DONE,
    ),
}


def check_failed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The error that ends a stream."""
    *before, last = events
    assert list(last) == ["error"]
    assert last["error"].keys() >= KEYS
    assert isinstance(last["error"]["message"], str)
    assert last["error"]["message"]
    assert not any("error" in event for event in before)
    error: dict[str, Any] = last["error"]
    return error


@pytest.mark.parametrize("name", BREAKS)
async def test_a_stream_that_breaks_ends_with_an_error_frame_and_is_kept_as_incomplete(name: str) -> None:
    async with world(ScriptedUpstream(Reply(pieces=[*BEGUN, *BREAKS[name]]))) as w:
        events = chunks(await w.post([user("x")], stream=True))
        (conversation,) = w.conversations()
        question, answer = await w.store.read_log(conversation, 0, conversation.head_seq + 1)
    error = check_failed(events)
    assert text_of(events) == "Half an"
    if "error" in name:
        assert error["message"] == "overloaded"
    assert question.message.text == "x"
    assert (answer.message.text, answer.incomplete) == ("Half an", True)


@pytest.mark.parametrize("name", BREAKS)
async def test_a_stream_that_breaks_after_a_compaction_ends_with_an_error_frame(name: str) -> None:
    upstream = summarizing(lambda _: Reply(pieces=[*BEGUN, *BREAKS[name]]))
    async with world(upstream) as w:
        events = chunks(await w.post(long_talk(), stream=True))
    check_failed(events)
    assert text_of(events) == "Half an"


async def test_a_break_before_the_first_event_is_an_ordinary_error_and_nothing_is_kept() -> None:
    for pieces in [(), (DROP,), (b": wait\n\n", DROP), (b"data: {",)]:
        async with world(ScriptedUpstream(default=lambda _: Reply(pieces=pieces))) as w:  # noqa: B023
            answer = await w.post([user("x")], stream=True)
            events = chunks(answer) if answer.status_code == 200 else [answer.json()]
            check_failed(events)
            assert w.rows() == 0


@asynccontextmanager
async def resetting(*pieces: bytes) -> AsyncIterator[str]:
    """A provider that begins to stream, then resets the connection; gives its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(RESET_AFTER_SECONDS)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def test_a_reset_connection_is_told_and_what_came_is_kept() -> None:
    async with resetting(*BEGUN) as address:
        providers = {"upstream": {"base_url": f"{address}/v1"}}
        async with world(ScriptedUpstream(), providers=providers) as w:
            events = chunks(await w.post([user("x")], stream=True))
            (conversation,) = w.conversations()
            (_, kept) = await w.store.read_log(conversation, 0, 2)
    assert check_failed(events)["code"] == "upstream_unavailable"
    assert text_of(events) == "Half an"
    assert (kept.message.text, kept.incomplete) == ("Half an", True)


async def test_a_connection_reset_before_the_first_event_is_a_bad_gateway() -> None:
    async with resetting() as address:
        providers = {"upstream": {"base_url": f"{address}/v1"}}
        async with world(ScriptedUpstream(), providers=providers) as w:
            answer = await w.post([user("x")], stream=True)
            assert w.rows() == 0
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unavailable")


async def test_what_comes_after_the_end_of_an_answer_does_not_spoil_it() -> None:
    for late in [DROP, b"data: <html>\n\n", b"data: {"]:
        pieces = [*BEGUN, chunk({}, "stop"), late]
        async with world(ScriptedUpstream(Reply(pieces=pieces))) as w:
            events = chunks(await w.post([user("x")], stream=True))
            assert "error" not in events[-1]
            assert "context" in events[-1]


REFUSALS: dict[str, tuple[Reply, int]] = {
    "status": (Reply({"error": {"message": "overloaded", "type": "t", "param": None, "code": "c"}}, status=418), 418),
    "200 with an error in JSON": (Reply({"error": {"message": "overloaded", "type": "t"}}), 502),
    "200 with a page": (Reply(b"<html>", headers={"content-type": "text/html"}), 502),
    "empty 200": (Reply(b""), 502),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_before_the_start_has_a_status_and_after_it_a_frame(name: str) -> None:
    reply, status = REFUSALS[name]
    async with world(summarizing(lambda _: reply)) as w:
        answer = await w.post([user("x")], stream=True)
        assert w.rows() == 0
        late = chunks(await w.post(long_talk(), stream=True))
        assert all(conversation.state[UNANSWERED_MESSAGES] for conversation in w.conversations())
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    error = check_failed(late)
    if b"overloaded" in answer.content:
        assert error["message"] == "overloaded"


async def test_an_error_chunk_at_the_start_is_told_in_the_stream() -> None:
    async with world(ScriptedUpstream(Reply(pieces=[ERROR, DONE]))) as w:
        events = chunks(await w.post([user("x")], stream=True))
        assert w.rows() == 0
    assert check_failed(events)["code"] == 529


async def test_a_fault_of_our_own_in_a_stream_is_told_without_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream(Reply(pieces=[BEGUN[0], 0.05, *BEGUN[1:], chunk({}, "stop"), DONE]))
    async with world(upstream) as w:
        answer = await broken(monkeypatch, w, "record_stream_end")
    events = chunks(answer)
    assert check_failed(events)["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


async def test_a_fault_of_our_own_before_a_stream_began_is_an_ordinary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await broken(monkeypatch, w, "relay_events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


async def broken(monkeypatch: pytest.MonkeyPatch, w: World, place: str) -> httpx.Response:
    def fault(*_: object) -> bytes:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ChatStreamSplicer, place, fault)
    return await w.post([user("x")], stream=True)


async def test_an_error_frame_is_raised_by_the_official_client() -> None:
    async with world(ScriptedUpstream(Reply(pieces=[*BEGUN, ERROR, DONE]))) as w:
        answer = await w.post([user("x")], stream=True)
    last = [line for line in answer.text.splitlines() if line.startswith("data: {")][-1]
    assert last.startswith('data: {"error":')
    assert "choices" not in json.loads(last[6:])
