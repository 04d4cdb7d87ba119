"""Claims of idempotency keys: renewed while the answer takes its time, and free again after their process has died."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from app.errors import IdempotencyKeyInUse, StoreUnavailable
from app.pipeline.admission import idempotency_keys
from app.pipeline.admission.idempotency_keys import CLAIM_SECONDS, IdempotencyClaim, IdempotencyKeys
from app.pipeline.admission.request_digest import MIN_THREAD_BYTES, compute_idempotency_digest
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.chat_request import Caller, ChatRequest
from app.store.contract.keys import IdempotencyKeyRecord
from tests.support.gateway import until
from tests.support.memory_store import MemoryStore

REQUEST = ChatRequest(
    caller=Caller(tenant="t"),
    request_id="r",
    body=b"{}",
    raw_fields={},
    raw_messages=[],
    model="m",
    idempotency_key="k",
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def moved(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        self.moved(seconds)

    def seconds(self) -> float:
        return self.now.timestamp()


class Process:
    """The keys of one of several processes on a store."""

    def __init__(self, store: MemoryStore, clock: Clock, name: str) -> None:
        self.tasks = BackgroundTasks()
        self.keys = IdempotencyKeys(
            keys=store,
            conversations=store,
            tasks=self.tasks,
            new_holder=lambda: name,
            wait_seconds=10,
            clock=clock.seconds,
            sleep=clock.sleep,
            random=lambda: 0.5,
        )

    async def claim(self, request: ChatRequest = REQUEST) -> IdempotencyClaim:
        claim = await self.keys.claim_key_or_replay(request)
        assert isinstance(claim, IdempotencyClaim)
        return claim


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=lambda: clock.now)


async def test_a_claim_is_renewed_for_as_long_as_it_is_held(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_keys, "RENEW_SECONDS", 0.001)
    claim = await Process(store, clock, "one").claim()
    clock.moved(CLAIM_SECONDS - 1)
    before = claim.renewal_task
    await until(lambda: claim.renewal_task is not before)
    assert claim.renewal_task is not None
    await claim.renewal_task
    clock.moved(CLAIM_SECONDS - 20)
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    await claim.release()


async def test_a_claim_whose_process_died_ends_by_itself(store: MemoryStore, clock: Clock) -> None:
    died = await Process(store, clock, "one").claim()
    assert died.renewal_timer is not None
    died.renewal_timer.cancel()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    clock.moved(CLAIM_SECONDS)
    claim = await Process(store, clock, "two").claim()
    await died.release()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "three").claim()
    await claim.release()


async def test_a_claim_that_was_given_up_is_not_renewed_any_more(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_keys, "RENEW_SECONDS", 0.001)
    claim = await Process(store, clock, "one").claim()
    await until(lambda: claim.renewal_task is not None)
    await claim.release()
    await claim.release()
    await asyncio.sleep(0.01)
    other = await Process(store, clock, "two").claim()
    await other.release()


class Flaky(MemoryStore):
    """Is away as often as it is told to be; `is_deaf`: does what it is asked for all the same."""

    outages = 0
    asked = 0
    is_deaf = False

    async def claim_idempotency_key(self, **request: Any) -> IdempotencyKeyRecord:
        if not self.outages:
            return await super().claim_idempotency_key(**request)
        if self.is_deaf:
            await super().claim_idempotency_key(**request)
        self._fail()
        raise AssertionError

    async def release_idempotency_key(self, **request: Any) -> None:
        self.asked += 1
        if self.outages:
            self._fail()
        await super().release_idempotency_key(**request)

    def _fail(self) -> None:
        self.outages -= 1
        raise StoreUnavailable("gone")


async def test_a_key_that_could_not_be_given_up_is_free_soon_after_the_store_is_back(clock: Clock) -> None:
    store = Flaky(clock=lambda: clock.now)
    process = Process(store, clock, "one")
    claim = await process.claim()
    store.outages, began = 4, clock.seconds()
    await claim.release()
    await process.tasks.aclose(1)
    await (await Process(store, clock, "two").claim()).release()
    assert clock.seconds() - began < 5


async def test_a_key_is_given_up_whose_claim_was_not_heard_of(clock: Clock) -> None:
    store = Flaky(clock=lambda: clock.now)
    store.outages, store.is_deaf = 1, True
    process = Process(store, clock, "one")
    assert await process.keys.claim_key_or_replay(REQUEST) is None
    await process.tasks.aclose(1)
    await (await Process(store, clock, "two").claim()).release()


async def test_a_store_that_stays_away_is_asked_once_for_all_keys_and_not_for_ever(clock: Clock) -> None:
    store = Flaky(clock=lambda: clock.now)
    process = Process(store, clock, "one")
    claims = [await process.claim(replace(REQUEST, idempotency_key=f"k{number}")) for number in range(50)]
    store.outages = 10_000
    for claim in claims:
        await claim.release()
    store.asked = 0
    await process.tasks.aclose(1)
    assert store.asked < 20
    assert not process.tasks.running_count


async def test_another_process_keeps_a_key_that_it_claimed_before_it_was_given_up(clock: Clock) -> None:
    ahead = timedelta()
    store = Flaky(clock=lambda: clock.now + ahead)
    process = Process(store, clock, "one")
    claim = await process.claim()
    store.outages = 1
    await claim.release()
    clock.moved(CLAIM_SECONDS - 1)
    ahead = timedelta(seconds=2)  # for the database the claim is over
    other = await Process(store, clock, "two").claim()
    await process.tasks.aclose(1)
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "three").claim()
    await other.release()


async def test_long_bodies_have_a_digest_too(store: MemoryStore, clock: Clock) -> None:
    long = b" " * (MIN_THREAD_BYTES + 1)
    digests = [await compute_idempotency_digest(_with_body(body)) for body in (long, long + b" ", long)]
    assert digests[0] == digests[2] != digests[1]


def _with_body(body: bytes) -> ChatRequest:
    return ChatRequest(caller=Caller(tenant="t"), request_id="r", body=body, raw_fields={}, raw_messages=[], model="m")
