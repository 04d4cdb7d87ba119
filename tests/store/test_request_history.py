"""Requests that have ended wait in a bounded queue, and are written in the background."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from app.errors import StoreUnavailable
from app.observability.metric_families import UNWRITTEN_REQUESTS
from app.observability.metrics import Metrics
from app.observability.request_record import EndedRequest
from app.store import request_history
from app.store.contract.requests import RequestQuery, StoredRequest
from app.store.request_history import RequestHistory
from tests.observability.test_request_record import request
from tests.support.memory_store import MemoryStore

ALL = RequestQuery(limit=100)


class CountingStore(MemoryStore):
    """A store in memory that can be away, or refuse."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.error: Exception | None = None
        self.batches: list[int] = []

    async def add_requests(self, requests: Sequence[StoredRequest]) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(len(requests))
        await super().add_requests(requests)

    async def list_requests(self, query: RequestQuery) -> list[StoredRequest]:
        if self.error is not None:
            raise self.error
        return await super().list_requests(query)


class World:
    """A process that keeps two requests in memory, and all in the database."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.metrics = Metrics()
        self.history = self.process()

    def process(self) -> RequestHistory:
        return RequestHistory(2, self.store, metrics=self.metrics)

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.history.add(request(number))

    async def stored(self) -> list[str]:
        return [one.id for one in await MemoryStore.list_requests(self.store, ALL)]

    def dropped(self) -> float:
        return self.metrics.read_snapshot().sum_series(UNWRITTEN_REQUESTS)


@pytest.fixture
def world() -> World:
    return World()


def ids(requests: Sequence[EndedRequest]) -> list[str | None]:
    return [one.id for one in requests]


async def test_requests_are_written_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_history, "MAX_REQUEST_BATCH", 2)
    world.add(1, 2, 3)
    assert world.store.batches == []
    await world.history.flush()
    assert world.store.batches == [2, 1]
    await world.history.flush()
    assert world.store.batches == [2, 1]


async def test_a_list_has_what_is_written_and_what_is_not_written_yet(world: World) -> None:
    world.add(1, 2, 3)
    await world.history.flush()
    world.add(4)
    assert ids(await world.history.list_requests(ALL)) == ["req_4", "req_3", "req_2", "req_1"]
    found = await world.history.list_requests(RequestQuery(limit=2, after=(request(4).started_unix, "req_4")))
    assert found == [request(3), request(2)]
    assert await world.history.find_request("req_4") == request(4)
    assert await world.history.find_request("req_1") == request(1)
    assert await world.history.find_request("req_5") is None


async def test_another_process_reads_what_is_written(world: World) -> None:
    world.add(1)
    await world.history.aclose()
    assert await world.process().list_requests(ALL) == [request(1)]


async def test_requests_wait_while_the_store_is_away(world: World) -> None:
    world.store.error = StoreUnavailable("The database is away.")
    world.add(1, 2, 3)
    with pytest.raises(StoreUnavailable):
        await world.history.flush()
    # The newest are in memory; who asks for others learns why there are none.
    assert ids(await world.history.list_requests(ALL)) == ["req_3", "req_2"]
    with pytest.raises(StoreUnavailable):
        await world.history.list_requests(RequestQuery(limit=5, tenant="school"))
    world.store.error = None
    await world.history.flush()
    assert await world.stored() == ["req_3", "req_2", "req_1"]
    assert world.dropped() == 0


async def test_what_does_not_fit_into_the_queue_is_dropped_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_history, "MAX_UNWRITTEN_REQUESTS", 2)
    world.add(1, 2, 3)
    await world.history.flush()
    assert (await world.stored(), world.dropped()) == (["req_2", "req_1"], 1)


async def test_what_the_database_refuses_is_dropped_and_counted(world: World) -> None:
    world.store.error = ValueError("no such column")
    world.add(1, 2)
    await world.history.flush()
    world.store.error = None
    world.add(3)
    await world.history.flush()
    assert (await world.stored(), world.dropped()) == (["req_3"], 2)


async def test_a_request_without_an_id_is_not_stored(world: World) -> None:
    world.history.add(msgspec.structs.replace(request(1), id=None))
    await world.history.flush()
    assert await world.stored() == []


async def test_a_record_of_a_newer_version_that_cannot_be_read_is_left_out(world: World) -> None:
    world.add(1)
    await world.history.flush()
    (row,) = await MemoryStore.list_requests(world.store, ALL)
    newer = row.record.replace('"attempt"', '"step of tomorrow"')
    await world.store.add_requests([msgspec.structs.replace(row, id="req_2", record=newer)])
    assert ids(await world.process().list_requests(ALL)) == ["req_1"]
    assert await world.process().find_request("req_2") is None
