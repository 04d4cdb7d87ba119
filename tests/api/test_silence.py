"""A stream that has begun never falls silent: frames without content come while the provider pauses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream, chunk
from tests.support.gateway import user, world
from tests.support.messages_world import USER, MessagesUpstream, join_message, messages_world, text

QUICK = dataclasses.replace(TEST_DEPENDENCIES, silence_seconds=0.05)
PAUSE = 0.4
BEGUN = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Half"})]
REST = [chunk({"content": " and half."}), chunk({}, "stop"), b"data: [DONE]\n\n"]


def paused() -> Reply:
    return Reply(pieces=[*BEGUN, PAUSE, *REST])


async def read_events(w: Any, path: str, body: dict[str, Any], headers: dict[str, str]) -> list[dict[str, Any]]:
    answer = await w.client.post(f"{w.base_url}/{path}", json={"model": "m", "stream": True, **body}, headers=headers)
    assert answer.status_code == 200
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_a_chat_stream_gets_chunks_of_the_same_completion_while_the_provider_pauses() -> None:
    async with world(ScriptedUpstream(paused()), dependencies=QUICK) as w:
        events = await read_events(w, "chat/completions", {"messages": [user("x")]}, {})
        texts = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
        log = await w.log(events[0]["conversation_id"])
    assert "".join(texts) == "Half and half."
    assert texts.count("") >= 3, "the pause was filled"
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert all(event["conversation_id"] == events[0]["conversation_id"] for event in events)
    assert [message["content"] for message in log] == ["x", "Half and half."]


async def test_a_response_stream_is_told_to_be_in_progress_in_order() -> None:
    async with world(ScriptedUpstream(paused()), dependencies=QUICK) as w:
        events = await read_events(w, "responses", {"input": "x"}, {})
    kinds = [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    first = kinds.index("response.output_text.delta")
    last = len(kinds) - 1 - kinds[::-1].index("response.output_text.delta")
    assert kinds[first:last].count("response.in_progress") >= 3
    assert kinds[-1] == "response.completed"


def paused_message() -> Reply:
    usage = {"input_tokens": 3, "output_tokens": 0}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    delta = {"type": "content_block_delta", "index": 0}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    events: list[dict[str, Any] | float] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        {**delta, "delta": {"type": "text_delta", "text": "Half"}},
        PAUSE,
        {**delta, "delta": {"type": "text_delta", "text": " and half."}},
        {"type": "content_block_stop", "index": 0},
        ended,
        {"type": "message_stop"},
    ]
    return Reply(pieces=[one if isinstance(one, float) else write_event(one) for one in events])


def write_event(body: dict[str, Any]) -> bytes:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


@pytest.mark.parametrize("upstream", [lambda: MessagesUpstream(paused_message()), lambda: ScriptedUpstream(paused())])
async def test_a_message_stream_gets_pings(upstream: Callable[[], ScriptedUpstream]) -> None:
    async with messages_world(upstream(), dependencies=QUICK) as w:
        events = await w.stream_events([USER])
    kinds = [event["type"] for event in events]
    assert kinds.count("ping") >= 3
    assert kinds[0] == "message_start"
    assert "ping" not in kinds[kinds.index("message_delta") :]
    assert join_message(events)["content"] == [text("Half and half.")]


async def test_a_message_stream_without_events_gets_no_pings() -> None:
    async with messages_world(MessagesUpstream(paused_message()), dependencies=QUICK) as w:
        events = await w.stream_events([USER], headers={"x-context-events": "off"})
    assert "ping" not in [event["type"] for event in events]


@pytest.mark.parametrize("headers", [{"x-context-events": "off"}])
async def test_a_client_that_wants_no_events_gets_none(headers: dict[str, str]) -> None:
    async with world(ScriptedUpstream(paused(), paused()), dependencies=QUICK) as w:
        events = await read_events(w, "chat/completions", {"messages": [user("x")]}, headers)
        assert sum(event["choices"][0]["delta"].get("content") == "" for event in events) == 1
        events = await read_events(w, "responses", {"input": "x"}, headers)
    assert [event["type"] for event in events].count("response.in_progress") == 1


async def test_a_stream_that_flows_gets_nothing_between() -> None:
    async with world(ScriptedUpstream(Reply(pieces=[*BEGUN, *REST])), dependencies=QUICK) as w:
        events = await read_events(w, "chat/completions", {"messages": [user("x")]}, {})
    assert [event["choices"][0]["delta"].get("content") for event in events if event["choices"]] == [
        "",
        "Half",
        " and half.",
        None,
    ]
