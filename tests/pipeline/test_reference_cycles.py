"""What a turn leaves behind holds itself in no circle: it goes when the turn does, not when the garbage collector comes
by, which it seldom does."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.api.edge.test_disconnect import BEGUN, leave_after
from tests.live import DONE, DROP, STEP_SECONDS, Reply, ScriptedUpstream, completion
from tests.store.test_database_outage import Flaky
from tests.support.gateway import World, is_summary, long_history, user, world
from tests.support.raw_http import until

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


async def silent(w: World, number: int) -> None:
    w.upstream.replies += [Reply(pieces=[DROP])] * 3
    assert (await w.post([user(f"question {number}")])).status_code == 502


async def refused_to_both(w: World, number: int) -> None:
    gate = asyncio.Event()
    w.upstream.replies.append(Reply({"error": {"message": "no"}}, status=400, gate=gate))
    asked, said = len(w.upstream.bodies), [user(f"question {number}")]
    headers = {"idempotency-key": f"key-{number}"}
    both = [asyncio.ensure_future(w.post(said, headers=headers)) for _ in range(2)]
    await until(lambda: len(w.upstream.bodies) > asked)
    await asyncio.sleep(STEP_SECONDS)
    gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*both)] == [400, 400]


async def not_stored(w: World, number: int) -> None:
    w.store.go("append")
    assert (await w.say([user(f"question {number}")]))["context_status"] == "degraded"


async def not_stored_of_a_stream(w: World, number: int) -> None:
    w.store.go("append")
    events = await w.stream([user(f"question {number}")])
    assert events[-1]["context_status"] == "degraded"


async def not_stored_and_so_refused(w: World, number: int) -> None:
    w.store.come_back()
    (await w.say([user("Begin")], conversation=f"mine-{number}"))
    w.store.go("append")
    assert (await w.post([user("More")], conversation=f"mine-{number}")).status_code == 503


async def lost_of_a_stream(w: World, number: int) -> None:
    w.store.come_back()
    (await w.say([user("Begin")], conversation=f"mine-{number}"))
    w.upstream.replies.append(Reply(pieces=[*BEGUN, STEP_SECONDS * 20, DONE]))
    asking = asyncio.ensure_future(w.post([user("More")], conversation=f"mine-{number}", stream=True))
    rows = w.rows()
    await until(lambda: w.rows() > rows)
    w.store.go("append")
    assert "store_unavailable" in (await asking).text


async def summarized_without_a_model(w: World, number: int) -> None:
    w.upstream.default = lambda body: Reply({"error": {}}, status=400) if is_summary(body) else completion()
    answer = await w.say([*long_history(40), user(f"question {number}")], key=f"sk-{number}")
    assert answer["context_status"] == "trimmed"


TURNS_OF_EACH_KIND = [
    *(whole, streamed, left, left_in_a_conversation, refused, broken, silent, refused_to_both),
    *(not_stored, not_stored_of_a_stream, not_stored_and_so_refused, lost_of_a_stream, summarized_without_a_model),
]


@pytest.mark.parametrize("turn", TURNS_OF_EACH_KIND)
async def test_a_turn_leaves_no_circles(turn: Callable[[World, int], Awaitable[None]]) -> None:
    async with world(ScriptedUpstream(), store=Flaky()) as w:
        await turn(w, 0)
        with circles() as found:
            for number in range(1, 1 + TURNS):
                await turn(w, number)
            await asyncio.sleep(STEP_SECONDS)  # connections close, tasks end
        assert found == {}
