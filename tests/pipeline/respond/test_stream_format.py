"""What a stream looks like on the wire, with and without a compaction in it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from tests.live import DONE, TEST_DEPENDENCIES, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.support.gateway import user, world
from tests.support.raw_http import SUMMARY, chunks, frames, long_talk, summarizing, text_of, until, without_ours


async def streamed(*pieces: Any, **fields: Any) -> list[dict[str, Any]]:
    """The client's chunks for what an upstream streams."""
    async with world(ScriptedUpstream(Reply(pieces=pieces))) as w:
        return chunks(await w.post([user("x")], stream=True, **fields))


async def test_every_chunk_names_status_and_conversation_and_the_last_with_a_reason_the_context() -> None:
    events = await streamed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        chunk({}, "stop"),
        usage_chunk(),
        DONE,
        stream_options={"include_usage": True},
    )
    assert {event["context_status"] for event in events} == {"full"}
    assert len({event["conversation_id"] for event in events}) == 1
    assert ["context" in event for event in events] == [False, False, True, False]
    assert events[2]["context"]["window"] == 8192
    assert events[3]["usage"]["prompt_tokens"] == 10


async def test_the_usage_chunk_reaches_only_clients_that_asked() -> None:
    pieces = (chunk({"role": "assistant", "content": "a"}), chunk({}, "stop"), usage_chunk(), DONE)
    assert not any(event.get("usage") for event in await streamed(*pieces))
    asked = await streamed(*pieces, stream_options={"include_usage": True})
    assert [bool(event.get("usage")) for event in asked] == [False, False, True]


async def test_usage_beside_a_choice_is_relayed_to_everyone() -> None:
    events = await streamed(chunk({"content": "a"}), chunk({}, "stop", usage={"prompt_tokens": 3}), DONE)
    assert events[-1]["usage"] == {"prompt_tokens": 3}


@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
async def test_comments_names_ids_and_carriage_returns_never_leak(cut: int) -> None:
    source = (
        b": OPENROUTER PROCESSING\r\n\r\n:\n\nretry: 10\n\nid: 7\nevent: message\r\n"
        + chunk({"role": "assistant", "content": "h\u00e9"}).replace(b"\n", b"\r\n")
        + b"data:\n\n\n\ndata: \n\n: ping\n\n"
        + chunk({"content": "llo"}).replace(b"\n", b"\r")
        + b'data: {"id":"chatcmpl-upstream",\ndata: "choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        + b'data: [DONE]\r\n\r\ndata: {"late":1}\n\n: bye\n\n'
    )
    events = await streamed(*(source[at : at + cut] for at in range(0, len(source), cut)))
    assert text_of(events) == "h\u00e9llo"
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "stop"]


async def test_a_stream_without_a_blank_line_or_done_at_its_end_is_ended_properly() -> None:
    events = await streamed(chunk({"content": "a"}), chunk({}, "stop").rstrip())
    assert text_of(events) == "a"
    assert "error" not in events[-1]


async def test_a_provider_that_keeps_the_line_open_after_done_does_not_hold_the_client() -> None:
    async with asyncio.timeout(30):
        events = await streamed(chunk({"content": "a"}), chunk({}, "stop"), DONE, 60)
    assert text_of(events) == "a"


async def test_several_choices_are_relayed_and_the_context_is_on_the_last_reason() -> None:
    def of(index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
        body = {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    interleaved = [of(0, {"content": "a"}), of(1, {"content": "b"}), of(1, {}, "stop"), of(0, {}, "length"), DONE]
    events = await streamed(*interleaved, n=2)
    assert (text_of(events, 0), text_of(events, 1)) == ("a", "b")
    assert ["context" in event for event in events] == [False, False, False, True]
    one_by_one = [of(0, {"content": "a"}), of(0, {}, "stop"), of(1, {"content": "b"}), of(1, {}, "stop"), DONE]
    assert "context" in (await streamed(*one_by_one, n=2))[-1]


async def test_tool_calls_and_empty_deltas_come_through_as_they_were() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    pieces = [
        chunk({"role": "assistant", "content": None, "tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        chunk({}),
        chunk({"content": ""}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        chunk({}, "tool_calls"),
    ]
    events = await streamed(*pieces, DONE)
    assert [without_ours(event) for event in events] == [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


async def test_a_chunk_with_half_a_character_and_one_in_a_list_are_relayed() -> None:
    half = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'
    other = b'data: [{"id":"c","choices":[{"index":0,"delta":{"content":"\\ude00"}}]}]\n\n'
    usage = b'data: {"id":"c","choices":[],"x":"\\ud83d","usage":{"prompt_tokens":1}}\n\n'
    events = await streamed(half, other, chunk({}, "stop"), usage, DONE)
    assert text_of(events).encode("utf-16", "surrogatepass").decode("utf-16") == "\U0001f600"
    upstream = summarizing(lambda _: Reply(pieces=[half, other, chunk({}, "stop"), usage, DONE]))
    async with world(upstream) as w:
        early = chunks(await w.post(long_talk(), stream=True))
    assert text_of(early).encode("utf-16", "surrogatepass").decode("utf-16") == "\U0001f600"


async def compacting(style: str | None = None, **fields: Any) -> Any:
    headers = {"x-context-events": style} if style else {}
    async with world(summarizing()) as w:
        answer = await w.post(long_talk(), stream=True, headers=headers, **fields)
        assert answer.status_code == 200, answer.text
        return answer


async def test_a_compaction_is_told_by_ordinary_chunks() -> None:
    answer = await compacting()
    assert answer.headers["x-context-status"] == "summarizing"
    started, ended, *rest = chunks(answer)
    assert started["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert started["context_event"]["type"] == "compaction_started"
    assert started["context_event"]["input_tokens"] > 5734
    assert started["context_event"]["context_window"] == 8192
    assert (started["context_status"], ended["context_status"]) == ("trimmed", "summarized")
    assert ended["choices"][0]["delta"] == {"content": ""}
    assert ended["context_event"].keys() == {"type", "duration_ms"}
    assert ended["context_event"]["type"] == "compaction_completed"
    assert text_of(rest) == "Fine."
    last = rest[-1]
    assert (last["context_status"], last["context"]["compaction"]["ran"]) == ("summarized", True)
    assert last["context"]["compaction"]["usage"]["prompt_tokens"] > 0
    assert len(last["context"]["summaries"]) > 0


async def test_after_an_early_start_there_is_one_role_and_one_identity() -> None:
    events = chunks(await compacting(stream_options={"include_usage": True}))
    assert {(e["id"], e["created"], e["model"], e["object"]) for e in events} == {
        (events[0]["id"], events[0]["created"], "m", "chat.completion.chunk")
    }
    assert events[0]["id"].startswith("chatcmpl-")
    roles = [choice["delta"].get("role") for event in events for choice in event["choices"]]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]
    assert events[-1]["usage"]["prompt_tokens"] == 10
    assert all("context_status" in event and event["conversation_id"] for event in events)


async def test_the_answer_is_stored_under_the_id_that_the_client_saw() -> None:
    async with world(summarizing()) as w:
        events = chunks(await w.post(long_talk(), stream=True))
        (conversation,) = w.conversations()
        (last,) = await w.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
    assert last.meta["id"] == events[0]["id"]
    assert last.meta["model"] == "upstream-model"


async def test_a_compaction_can_be_told_by_named_events() -> None:
    found = frames(await compacting("named"))
    named = [frame.split("\n") for frame in found if frame.startswith("event: ")]
    assert [name for name, _ in named] == ["event: compaction_started", "event: compaction_completed"]
    assert all(json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ") for name, data in named)
    ordinary = [json.loads(frame[6:]) for frame in found if frame.startswith("data: {")]
    assert ordinary[0]["choices"][0]["delta"]["role"] == "assistant"
    assert not any("context_event" in event for event in ordinary)
    assert text_of(ordinary) == "Fine."


async def test_a_compaction_can_be_told_by_comments() -> None:
    found = frames(await compacting("comment"))
    comments = [frame for frame in found if frame.startswith(": ")]
    assert [comment.split(" ")[1] for comment in comments] == ["compaction_started", "compaction_completed"]
    assert all("\n" not in comment for comment in comments)
    ordinary = [json.loads(frame[6:]) for frame in found if frame.startswith("data: {")]
    assert text_of(ordinary) == "Fine."


NO_SUMMARY = Reply({"error": {"message": "no", "type": "server_error", "param": None, "code": None}}, 400)


@pytest.mark.parametrize("style", ["chunk", "named", "comment"])
@pytest.mark.parametrize(
    ("summary", "turns", "statuses"),
    [
        (completion(SUMMARY), 14, ("full", "summarized")),
        (completion(SUMMARY), 30, ("trimmed", "summarized")),
        (NO_SUMMARY, 14, ("full", "trimmed")),
        (NO_SUMMARY, 30, ("trimmed", "trimmed")),
    ],
)
async def test_the_status_while_a_compaction_runs_does_not_promise_its_summary(
    summary: Reply,
    turns: int,
    statuses: tuple[str, str],
    style: str,
) -> None:
    async with world(summarizing(summary=summary)) as w:
        answer = await w.post(long_talk(turns), stream=True, headers={"x-context-events": style})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [event for event in map(json.loads, lines) if "choices" in event]
    assert [event["context_status"] for event in events] == [statuses[0]] + [statuses[1]] * (len(events) - 1)
    assert answer.headers["x-context-status"] == "summarizing"


async def test_a_compaction_can_go_untold() -> None:
    answer = await compacting("off")
    events = chunks(answer)
    assert not any("context_event" in event for event in events)
    assert answer.headers["x-context-status"] == "summarized"
    assert events[0]["id"] == "chatcmpl-upstream"


async def test_while_a_compaction_lasts_empty_chunks_keep_the_reader_awake() -> None:
    slow = completion(SUMMARY)
    slow.gate = asyncio.Event()
    quick_heartbeat = dataclasses.replace(TEST_DEPENDENCIES, heartbeat_seconds=0.03)
    async with world(summarizing(summary=slow), dependencies=quick_heartbeat) as w:
        request = {"model": "m", "stream": True, "messages": long_talk()}
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            started = json.loads((await anext(lines)).removeprefix("data: "))
            beats = [json.loads((await anext(lines)).removeprefix("data: ")) for _ in range(3)]
            slow.gate.set()
            rest = [line async for line in lines]
    for beat in beats:
        assert beat["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]
        assert beat["id"] == started["id"]
        assert beat["context_status"]
        assert "context_event" not in beat
    assert rest[-1] == "data: [DONE]"


async def test_a_compaction_that_fails_is_told_and_the_answer_comes_all_the_same() -> None:
    failing = Reply({"error": {"message": "no", "type": "server_error", "param": None, "code": None}}, status=400)
    async with world(summarizing(summary=failing)) as w:
        events = chunks(await w.post(long_talk(), stream=True))
    told = [event["context_event"]["type"] for event in events if "context_event" in event]
    assert told == ["compaction_started", "compaction_failed"]
    assert text_of(events) == "Fine."
    assert events[-1]["context"]["compaction"]["outcome"] == "failed"


async def test_without_a_compaction_nothing_is_sent_before_the_provider_answers() -> None:
    held = stream("Fine.")
    held.gate = asyncio.Event()
    upstream = ScriptedUpstream(held)
    async with world(upstream) as w:
        asking = asyncio.ensure_future(
            w.client.send(
                w.client.build_request(
                    "POST",
                    f"{w.base_url}/chat/completions",
                    json={"model": "m", "stream": True, "messages": [user("x")]},
                ),
                stream=True,
            )
        )
        await until(lambda: bool(upstream.bodies))
        assert not asking.done()
        held.gate.set()
        answer = await asking
        await answer.aread()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert chunks(answer)[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_compaction_without_a_stream_answers_once_with_everything() -> None:
    async with world(summarizing()) as w:
        answer = await w.post(long_talk())
    body = answer.json()
    assert answer.headers["x-context-status"] == body["context_status"] == "summarized"
    assert answer.headers["x-conversation-id"] == body["conversation_id"]
    assert body["context"]["compaction"]["ran"] is True
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


async def test_what_is_refused_before_a_compaction_is_refused_with_its_status() -> None:
    async with world(summarizing()) as w:
        unknown = await w.post(long_talk(), stream=True, context={"policy": "nope"})
        wrong = await w.post([*long_talk(), {"role": "nobody"}], stream=True)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "policy_not_found")
    assert wrong.status_code == 400
