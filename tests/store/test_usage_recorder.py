"""Usage is added up in memory, written in the background, and known for budgets at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from app.dialects.chat.usage import TokenUsage
from app.errors import StoreUnavailable
from app.store.contract.usage import MAX_USAGE_BATCH, UsageTotals
from app.store.memory.backend import MemoryStore
from app.store.usage_recorder import UsageRecorder

LAST_EVENING = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC)
USAGE = TokenUsage(100, 40, 7)


class CountingStore(MemoryStore):
    """A store in memory that counts reads, and that can be away or slow."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: LAST_EVENING)
        self.is_away = False
        self.reads = 0
        self.pause = asyncio.Event()
        self.pause.set()

    async def add_usage(self, totals: Sequence[UsageTotals]) -> None:
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        await self.pause.wait()
        assert len(totals) <= MAX_USAGE_BATCH
        await super().add_usage(totals)

    async def read_key_cost(self, *, key_id: str, since_day: str) -> float:
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        self.reads += 1
        return await super().read_key_cost(key_id=key_id, since_day=since_day)


class World:
    def __init__(self) -> None:
        self.store = CountingStore()
        self.time = LAST_EVENING
        self.recorder = self.process()

    def process(self) -> UsageRecorder:
        """Another process on the same store."""
        return UsageRecorder(self.store, now=lambda: self.time)

    async def stored(self, since_day: str = "2026-01-01") -> list[tuple[str, str, int, float]]:
        found = await self.store.sum_usage(since_day=since_day, by="key")
        return [(row.tenant, row.key_id, row.requests, row.cost_usd) for row in found]


@pytest.fixture
def world() -> World:
    return World()


async def test_calls_are_added_up_and_written_once(world: World) -> None:
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    world.recorder.record_call("shop", "key_1", "small", USAGE, None)
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.5, is_answer=False)
    world.recorder.record_call("shop/enduser", None, "small", None, None)
    assert await world.stored() == []
    await world.recorder.flush()
    await world.recorder.flush()
    assert await world.stored() == [("shop", "key_1", 2, 0.75), ("shop", "", 1, 0.0)]
    (by_model,) = await world.store.sum_usage(since_day="2026-11-30", by="model")
    assert by_model == UsageTotals("", "", "", "small", 3, 2, 300, 120, 21, 0.75)


async def test_more_sums_than_one_statement_takes_are_written(world: World) -> None:
    for index in range(MAX_USAGE_BATCH * 2 + 1):
        world.recorder.record_call("shop", "key_1", f"model {index}", USAGE, 0.5)
    await world.recorder.flush()
    assert await world.stored() == [("shop", "key_1", 101, 50.5)]


async def test_nothing_is_lost_while_the_store_is_away(world: World) -> None:
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    world.store.is_away = True
    with pytest.raises(StoreUnavailable):
        await world.recorder.flush()
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.5)
    world.store.is_away = False
    await world.recorder.flush()
    assert await world.stored() == [("shop", "key_1", 2, 0.75)]


async def test_a_stop_writes_what_is_left(world: World) -> None:
    world.recorder.start()
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    await world.recorder.aclose()
    assert await world.stored() == [("shop", "key_1", 1, 0.25)]


async def test_a_stop_during_a_write_loses_nothing(world: World) -> None:
    world.recorder = UsageRecorder(world.store, now=lambda: world.time, flush_seconds=0)
    world.store.pause.clear()
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    world.recorder.start()
    await asyncio.sleep(0.01)
    stopping = asyncio.ensure_future(world.recorder.aclose())
    await asyncio.sleep(0.01)
    world.store.pause.set()
    await stopping
    assert await world.stored() == [("shop", "key_1", 1, 0.25)]


async def test_the_cost_of_a_key_is_known_at_once_and_read_once(world: World) -> None:
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    assert await world.recorder.find_month_cost("key_1") == 0.25
    world.recorder.record_call("shop/end user", "key_1", "large", USAGE, 0.5)
    world.recorder.record_call("shop", "key_2", "small", USAGE, 8.0)
    assert [await world.recorder.find_month_cost("key_1") for _ in range(3)] == [0.75] * 3
    assert world.store.reads == 1
    await world.recorder.flush()
    assert await world.recorder.find_month_cost("key_1") == 0.75


async def test_what_other_processes_spend_is_known_after_their_write_and_our_next(world: World) -> None:
    other = world.process()
    assert await world.recorder.find_month_cost("key_1") == 0.0
    other.record_call("shop", "key_1", "small", USAGE, 0.5)
    await other.flush()
    assert await world.recorder.find_month_cost("key_1") == 0.0
    await world.recorder.flush()
    assert await world.recorder.find_month_cost("key_1") == 0.5


async def test_a_cost_during_a_write_is_counted_once(world: World) -> None:
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    assert await world.recorder.find_month_cost("key_1") == 0.25
    world.store.pause.clear()
    writing = asyncio.ensure_future(world.recorder.flush())
    await asyncio.sleep(0)
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.5)
    first_question = asyncio.ensure_future(world.recorder.find_month_cost("key_2"))
    assert await world.recorder.find_month_cost("key_1") == 0.75
    world.store.pause.set()
    await writing
    assert await first_question == 0.0
    assert await world.recorder.find_month_cost("key_1") == 0.75


async def test_keys_that_nobody_asks_about_are_not_read_again(world: World) -> None:
    await world.recorder.find_month_cost("key_1")
    for _ in range(4):
        await world.recorder.flush()
    assert world.store.reads == 2


async def test_a_month_begins_at_midnight_in_utc(world: World) -> None:
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    assert await world.recorder.find_month_cost("key_1") == 0.25
    world.time += timedelta(seconds=11)
    assert await world.recorder.find_month_cost("key_1") == 0.0
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.5)
    assert await world.recorder.find_month_cost("key_1") == 0.5
    await world.recorder.flush()
    assert await world.recorder.find_month_cost("key_1") == 0.5
    assert await world.stored("2026-12-01") == [("shop", "key_1", 1, 0.5)]


async def test_an_unknown_cost_is_an_error_while_the_store_is_away(world: World) -> None:
    assert await world.recorder.find_month_cost("key_1") == 0.0
    world.store.is_away = True
    world.recorder.record_call("shop", "key_1", "small", USAGE, 0.25)
    with pytest.raises(StoreUnavailable):
        await world.recorder.flush()
    assert await world.recorder.find_month_cost("key_1") == 0.25
    with pytest.raises(StoreUnavailable):
        await world.recorder.find_month_cost("key_2")


async def test_old_sums_are_deleted_once_a_day(world: World) -> None:
    await world.store.add_usage([UsageTotals("shop", "", day, "small", 1) for day in ("2025-10-25", "2025-10-26")])
    recorder = UsageRecorder(world.store, now=lambda: world.time, flush_seconds=0)
    recorder.start()
    await asyncio.sleep(0.01)
    await recorder.aclose()
    assert await world.stored("2025-01-01") == [("shop", "", 1, 0.0)]
