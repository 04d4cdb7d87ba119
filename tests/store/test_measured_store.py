"""A measured store is the store, and tells what it takes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.errors import StoreUnavailable
from app.observability import metric_families as f
from app.observability.metrics import Metrics
from app.store.contract.store import Store
from app.store.measured_store import WriteHealth, measure_store
from tests.support.memory_store import MemoryStore

HEALTH = WriteHealth(lambda: 0.0)


def store() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(UTC))


def test_everything_that_a_store_has_is_there() -> None:
    shown = measure_store(store(), Metrics(), HEALTH)
    assert [name for name in dir(Store) if not name.startswith("_") and not hasattr(shown, name)] == []


async def test_each_operation_is_timed() -> None:
    metrics = Metrics()
    await measure_store(store(), metrics, HEALTH).list_api_keys()
    assert metrics.read_snapshot().sum_histogram(f.STORE_SECONDS, operation="list_api_keys").count(1) == 1
    assert metrics.read_snapshot().sum_series(f.STORE_QUEUE) == 0


async def test_a_store_that_is_away_is_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(**_: object) -> None:
        raise StoreUnavailable("away")

    metrics, inner = Metrics(), store()
    monkeypatch.setattr(inner, "list_api_keys", away)
    with pytest.raises(StoreUnavailable):
        await measure_store(inner, metrics, HEALTH).list_api_keys()
    assert metrics.read_snapshot().sum_series(f.STORE_ERRORS, operation="list_api_keys") == 1
