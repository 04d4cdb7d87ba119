"""A store that can be read but not written is told of once, by one metric, and after a minute by the readiness."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import StoreUnavailable
from app.observability import metric_families as f
from app.observability.metrics import NO_METRICS, Metrics
from app.store.contract.conversations import LogAppend
from app.store.contract.store import Store
from app.store.measured_store import UNREADY_SECONDS, WriteHealth, measure_store
from tests.store.example_logs import begin, fresh_tenant
from tests.support.memory_store import MemoryStore
from tests.upstream.scripted_provider import Time

FULL = StoreUnavailable("The database file cannot be used: database or disk is full.")


class FullStore(MemoryStore):
    """Its writes fail while `is_full`."""

    is_full = True

    async def append(self, write: LogAppend) -> None:
        if self.is_full:
            raise FULL
        await super().append(write)

    async def claim_lease(self, **arguments: Any) -> Any:
        if self.is_full:
            raise FULL
        return await super().claim_lease(**arguments)


async def write(store: Store) -> None:
    await begin(store, fresh_tenant(), ["user hi"])


async def claim(store: Store) -> None:
    await store.claim_lease(root="r", key="k", holder="h", seconds=1)


@pytest.mark.parametrize("metrics", [Metrics(), NO_METRICS], ids=["with metrics", "without"])
async def test_a_full_disk_is_told_once_and_after_a_minute_by_the_readiness(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    inner = FullStore(clock=lambda: datetime.now(UTC))
    store = measure_store(inner, metrics, WriteHealth(time.clock))

    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await claim(store)
    assert [record.message for record in caplog.records] == [
        f"the database cannot be written, so answers are not stored: {FULL.message}"
    ]
    await store.check()
    time.now += UNREADY_SECONDS
    with pytest.raises(StoreUnavailable, match=r"cannot be written: The database file cannot be used: .* is full"):
        await store.check()

    inner.is_full = False
    await store.check()
    await write(store)
    assert [record.message for record in caplog.records][1:] == ["the database can be written again"]


async def test_writes_that_begin_to_fail_show_in_a_metric() -> None:
    metrics = Metrics()
    inner = FullStore(clock=lambda: datetime.now(UTC))
    store = measure_store(inner, metrics, WriteHealth(Time().clock))
    with pytest.raises(StoreUnavailable):
        await write(store)
    assert metrics.read_snapshot().sum_series(f.STORE_UNWRITABLE) == 1
    inner.is_full = False
    await write(store)
    assert metrics.read_snapshot().sum_series(f.STORE_UNWRITABLE) == 0
