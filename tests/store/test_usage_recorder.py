"""Usage is added up in memory and written in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from app.dialects.usage import TokenUsage
from app.errors import StoreUnavailable
from app.store.contract.usage import MAX_USAGE_BATCH, UsageQuery, UsageTotals
from app.store.usage_recorder import UsageRecorder
from tests.support.memory_store import MemoryStore

LAST_EVENING = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC)
USAGE = TokenUsage(100, 40, 7)


class CountingStore(MemoryStore):
    """A store in memory that can be away or slow."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: LAST_EVENING)
        self.is_away = False
        self.pause = asyncio.Event()
        self.pause.set()

    async def add_usage(self, totals: Sequence[UsageTotals]) -> None:
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        await self.pause.wait()
        assert len(totals) <= MAX_USAGE_BATCH
        await super().add_usage(totals)


class World:
    def __init__(self) -> None:
        self.store = CountingStore()
        self.time = LAST_EVENING
        self.recorder = self.process()

    def process(self) -> UsageRecorder:
        """Another process on the same store."""
        return UsageRecorder(self.store, now=lambda: self.time)

    async def stored(self, since_day: str = "2026-01-01") -> list[tuple[str, str, int, float]]:
        found = await self.store.sum_usage(UsageQuery(since_day, "key"))
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
    (by_model,) = await world.store.sum_usage(UsageQuery("2026-11-30", "model"))
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


async def test_old_sums_are_deleted_once_a_day(world: World) -> None:
    await world.store.add_usage([UsageTotals("shop", "", day, "small", 1) for day in ("2025-10-25", "2025-10-26")])
    recorder = UsageRecorder(world.store, now=lambda: world.time, flush_seconds=0)
    recorder.start()
    await asyncio.sleep(0.01)
    await recorder.aclose()
    assert await world.stored("2025-01-01") == [("shop", "", 1, 0.0)]
