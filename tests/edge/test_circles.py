"""What a turn leaves behind holds itself in no circle: it goes when the turn does, not when the garbage collector comes
by, which it seldom does."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.edge.kept import World, user, world
from tests.edge.test_disconnect import BEGUN, leave_after
from tests.edge.wire import until
from tests.live import DROP, STEP_SECONDS, Reply, ScriptedUpstream

TURNS = 3


@contextmanager
def circles() -> Iterator[Counter[str]]:
    """Counts what of ours only the collector finds, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("app."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def whole(w: World, number: int) -> None:
    await w.say([user(f"question {number}")])


async def streamed(w: World, number: int) -> None:
    await w.stream([user(f"question {number}")])


async def left(w: World, number: int) -> None:
    rows = w.rows()
    w.upstream.replies.append(Reply(pieces=[*BEGUN, 60]))
    await leave_after(w, [user(f"question {number}")], 4)
    await until(lambda: w.rows() == rows + 2)


async def left_in_a_conversation(w: World, number: int) -> None:
    rows = w.rows()
    w.upstream.replies.append(Reply(pieces=[*BEGUN, 60]))
    await leave_after(w, [user(f"question {number}")], 4, conversation=f"mine-{number}")
    await until(lambda: w.rows() == rows + 2)


async def refused(w: World, number: int) -> None:
    w.upstream.replies.append(Reply({"error": {"message": "no"}}, status=400))
    assert (await w.post([user(f"question {number}")])).status_code == 400


async def broken(w: World, number: int) -> None:
    w.upstream.replies.append(Reply(pieces=[*BEGUN, DROP]))
    await w.post([user(f"question {number}")], stream=True)


@pytest.mark.parametrize("turn", [whole, streamed, left, left_in_a_conversation, refused, broken])
async def test_a_turn_leaves_no_circles(
    monkeypatch: pytest.MonkeyPatch, turn: Callable[[World, int], Awaitable[None]]
) -> None:
    async with world(monkeypatch, ScriptedUpstream()) as w:
        await turn(w, 0)
        with circles() as found:
            for number in range(1, 1 + TURNS):
                await turn(w, number)
            await asyncio.sleep(STEP_SECONDS)  # connections close, tasks end
        assert found == {}
