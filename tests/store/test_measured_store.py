"""A measured store is the store, and tells what it takes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.errors import StoreUnavailable
from app.observability import metric_families as f
from app.observability.metrics import SILENT, Metrics
from app.store.contract import Store
from app.store.measured_store import measured
from app.store.memory.backend import MemoryStore


def store() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(UTC))


def test_everything_that_a_store_has_is_there() -> None:
    shown = measured(store(), Metrics())
    assert [name for name in dir(Store) if not name.startswith("_") and not hasattr(shown, name)] == []


async def test_each_operation_is_timed() -> None:
    metrics = Metrics()
    await measured(store(), metrics).keys()
    assert metrics.numbers().summed(f.STORE_SECONDS, operation="keys")[1:].count(1) == 1
    assert metrics.numbers().total(f.STORE_QUEUE) == 0


async def test_a_store_that_is_away_is_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(**_: object) -> None:
        raise StoreUnavailable("away")

    metrics, inner = Metrics(), store()
    monkeypatch.setattr(inner, "keys", away)
    with pytest.raises(StoreUnavailable):
        await measured(inner, metrics).keys()
    assert metrics.numbers().total(f.STORE_ERRORS, operation="keys") == 1


def test_a_store_that_nobody_watches_is_left_as_it_is() -> None:
    inner = store()
    assert measured(inner, SILENT) is inner
