"""Clients that leave early or read slowly: the upstream is let go, what was given is kept, a compaction goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.live import DONE, STEP_SECONDS, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, is_summary, summaries_asked, user, world
from tests.support.raw_http import SUMMARY, chunks, long_talk, summarizing, text_of, until

LEFT_SECONDS = 0.1
"""How soon after a client's leaving its upstream call must be gone, in seconds of `LoopClock`."""
BEGUN = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Half an"}))


class LoopClock:
    """Counts seconds without those by which the event loop ran late, as it does while other processes are busy.

    Client, gateway and upstream share the loop: none of them can act while it is late.
    """

    def __init__(self) -> None:
        self._late_seconds = 0.0

    def seconds(self) -> float:
        return time.monotonic() - self._late_seconds

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + STEP_SECONDS
            await asyncio.sleep(STEP_SECONDS)
            self._late_seconds += time.monotonic() - due


@asynccontextmanager
async def loop_clock() -> AsyncIterator[LoopClock]:
    clock = LoopClock()
    watching = asyncio.ensure_future(clock.watch())
    try:
        yield clock
    finally:
        watching.cancel()


async def leave_after(w: World, said: list[dict[str, Any]], pieces: int, **fields: Any) -> None:
    """Ask, read some lines of the stream and hang up."""
    request = {"model": "m", "messages": said, "stream": True, **fields}
    headers = {"authorization": "Bearer sk-one"}
    async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request, headers=headers) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        for _ in range(pieces):
            await anext(lines)


async def test_a_client_that_hangs_up_takes_the_upstream_call_with_it() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, 60]))
    async with world(upstream) as w, loop_clock() as clock:
        await leave_after(w, [user("x")], 4)
        left = clock.seconds()
        async with asyncio.timeout(30):
            await upstream.left.wait()
        assert clock.seconds() - left < LEFT_SECONDS
        await until(lambda: w.rows() == 2)
        (conversation,) = w.conversations()
        (_, answer) = await w.store.read_log(conversation, 0, 2)
    assert (answer.message.text, answer.incomplete) == ("Half an", True)


async def test_the_next_request_goes_on_after_an_answer_that_was_cut_short() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, 60]))
    async with world(upstream) as w:
        await leave_after(w, [user("x")], 4)
        await until(lambda: w.rows() == 2)
        (conversation,) = w.conversations()
        body = await w.say([user("x"), {"role": "assistant", "content": "Half an"}, user("go on")])
        assert body["conversation_id"] == conversation.id
        assert w.rows() == 4


async def test_a_stream_that_is_left_before_anything_came_leaves_nothing() -> None:
    held = stream("never")
    held.gate = asyncio.Event()
    upstream = ScriptedUpstream(held)
    async with world(upstream) as w, loop_clock() as clock:
        asking = asyncio.ensure_future(w.post([user("x")], stream=True))
        await until(lambda: bool(upstream.bodies))
        await until(lambda: w.rows() == 1)
        asking.cancel()
        left = clock.seconds()
        async with asyncio.timeout(30):
            await upstream.left.wait()
        assert clock.seconds() - left < LEFT_SECONDS
        await until(lambda: not w.conversations())


async def test_an_answer_that_its_client_did_not_wait_for_is_stored() -> None:
    held = completion("late")
    held.gate = asyncio.Event()
    upstream = ScriptedUpstream(held)
    async with world(upstream) as w:
        asking = asyncio.ensure_future(w.post([user("x")]))
        await until(lambda: w.rows() == 1)
        asking.cancel()
        held.gate.set()
        await until(lambda: w.rows() == 2)


async def test_a_client_that_hangs_up_in_a_compaction_does_not_end_it() -> None:
    slow = completion(SUMMARY)
    slow.gate = asyncio.Event()
    upstream = summarizing(summary=slow)
    async with world(upstream) as w:
        await leave_after(w, long_talk(), 1)
        slow.gate.set()
        await until(lambda: len(summaries_asked(upstream)) >= 2)
        assert all(is_summary(body) for body in upstream.requests)
        events = chunks(await w.post(long_talk(), stream=True))
        assert text_of(events) == "Fine."
        assert events[-1]["context_status"] == "summarized"
        assert len(summaries_asked(upstream)) == len(w.chunks())


async def test_a_whole_answer_is_compacted_for_and_stored_after_its_client_has_left() -> None:
    slow = completion(SUMMARY)
    slow.gate = asyncio.Event()
    upstream = summarizing(summary=slow)
    async with world(upstream) as w:
        said = long_talk()
        asking = asyncio.ensure_future(w.post(said))
        await until(lambda: bool(upstream.bodies))
        asking.cancel()
        slow.gate.set()
        await until(lambda: w.rows() == len(said) + 1)
        assert len(summaries_asked(upstream)) == len(w.chunks()) > 0


async def test_a_hang_up_gives_the_conversation_back_to_the_next() -> None:
    upstream = ScriptedUpstream(completion(), Reply(pieces=[*BEGUN, 60]))
    named = {"x-conversation-id": "mine"}
    async with world(upstream) as w:
        await w.say([user("one")], headers=named)
        request = {"model": "m", "messages": [user("two")], "stream": True}
        headers = {**named, "authorization": "Bearer sk-one"}
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request, headers=headers) as answer:
            lines = answer.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
        async with asyncio.timeout(30):
            await w.say([user("three")], headers=named)
        (conversation,) = w.conversations()
        log = await w.log(conversation.id)
    assert [message["content"] for message in log] == ["one", "Fine.", "two", "Half an", "three", "Fine."]


async def test_a_slow_reader_gets_everything() -> None:
    words = [f"{number} " * 400 for number in range(2000)]
    async with world(ScriptedUpstream(stream(*words))) as w:
        request = {"model": "m", "messages": [user("x")], "stream": True}
        received = bytearray()
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request) as answer:
            pieces = answer.aiter_raw(chunk_size=65536)
            for _ in range(5):
                received += await anext(pieces)
                await asyncio.sleep(0.02)
            async for piece in pieces:
                received += piece
        (conversation,) = w.conversations()
        (_, kept) = await w.store.read_log(conversation, 0, 2)
    assert received.endswith(DONE)
    assert (kept.message.text, kept.incomplete) == ("".join(words), False)


async def test_a_client_that_leaves_with_unread_data_is_noticed() -> None:
    words = ["far more than any buffer holds " * 400 for _ in range(4000)]
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, *(chunk({"content": word}) for word in words)]))
    async with world(upstream) as w:
        await leave_after(w, [user("x")], 4)
        await until(lambda: w.rows() == 2)
        (conversation,) = w.conversations()
        (_, kept) = await w.store.read_log(conversation, 0, 2)
    assert kept.incomplete
