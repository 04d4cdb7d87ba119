"""Claims of idempotency keys: renewed while the answer takes its time, and free again after their process has died."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.conversation.conversation_types import Conversation
from app.errors import IdempotencyKeyInUse, StoreUnavailable
from app.pipeline.admission import idempotency_keys
from app.pipeline.admission.idempotency_keys import CLAIM_SECONDS, IdempotencyClaim, IdempotencyKeys
from app.pipeline.resolve.answer_replay import MIN_THREAD_BYTES, StoredAnswers, compute_idempotency_digest
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller, ChatRequest, RetryOptions
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
    retry=RetryOptions(idempotency_key="k"),
)

CONVERSATION = Conversation("c", "c", "t", 0, b"", b"", 0, answered=True, encoding="o200k_base")


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
            store=store,
            stored_answers=StoredAnswers(store, now=lambda: clock.now),
            tasks=self.tasks,
            new_holder=lambda: name,
            wait_seconds=10,
            clock=clock.seconds,
            sleep=clock.sleep,
            random=lambda: 0.5,
        )

    async def claim(self, request: ChatRequest = REQUEST) -> IdempotencyClaim:
        claim = IdempotencyClaim(self.keys, request)
        assert await claim.acquire_or_replay() is None
        return claim


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=lambda: clock.now)


async def test_a_claim_is_renewed_for_as_long_as_it_is_held(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "RENEW_SECONDS", 0.001)
    store = Flaky(clock=lambda: clock.now)
    claim = await Process(store, clock, "one").claim()
    clock.moved(CLAIM_SECONDS - 1)
    before = store.claims
    await until(lambda: store.claims > before + 1)
    clock.moved(CLAIM_SECONDS - 20)
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    await claim.release()


async def test_a_claim_outlives_a_renewal_that_fails(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "RENEW_SECONDS", 0.001)
    store = Flaky(clock=lambda: clock.now)
    claim = await Process(store, clock, "one").claim()
    store.outages, before = 1, store.claims
    await until(lambda: store.claims > before + 2)
    assert not store.outages
    await claim.release()


async def test_a_claim_whose_process_died_ends_by_itself(store: MemoryStore, clock: Clock) -> None:
    died = await Process(store, clock, "one").claim()
    assert died.renewal is not None
    died.renewal.cancel()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    clock.moved(CLAIM_SECONDS)
    claim = await Process(store, clock, "two").claim()
    await died.release()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "three").claim()
    await claim.release()


async def test_a_claim_that_was_given_up_is_not_renewed_any_more(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a renewal that is under way, either."""
    monkeypatch.setattr(idempotency_keys, "RENEW_SECONDS", 0.001)
    store = Flaky(clock=lambda: clock.now)
    claim = await Process(store, clock, "one").claim()
    store.delay_seconds = 0.01
    before = store.claims
    await until(lambda: store.claims > before)
    await claim.release()
    await claim.release()
    store.delay_seconds = 0.0
    other = await Process(store, clock, "two").claim()
    await other.release()


class Flaky(MemoryStore):
    """Is away as often as it is told to be; `is_deaf`: does what it is asked for all the same."""

    outages = 0
    claims = 0
    is_deaf = False
    delay_seconds = 0.0

    async def claim_idempotency_key(self, **request: Any) -> IdempotencyKeyRecord:
        self.claims += 1
        await asyncio.sleep(self.delay_seconds)
        if not self.outages:
            return await super().claim_idempotency_key(**request)
        if self.is_deaf:
            await super().claim_idempotency_key(**request)
        self._fail()
        raise AssertionError

    async def release_idempotency_key(self, **request: Any) -> None:
        if self.outages:
            self._fail()
        await super().release_idempotency_key(**request)

    def _fail(self) -> None:
        self.outages -= 1
        raise StoreUnavailable("gone")


async def test_a_key_that_could_not_be_given_up_is_free_when_its_claim_ends(clock: Clock) -> None:
    store = Flaky(clock=lambda: clock.now)
    claim = await Process(store, clock, "one").claim()
    store.outages = 1
    await claim.release()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    clock.moved(CLAIM_SECONDS)
    await (await Process(store, clock, "two").claim()).release()


async def test_a_key_is_given_up_whose_claim_was_not_heard_of(clock: Clock) -> None:
    store = Flaky(clock=lambda: clock.now)
    store.outages, store.is_deaf = 1, True
    claim = await Process(store, clock, "one").claim()
    assert claim.renewal is None
    await claim.release()
    await (await Process(store, clock, "two").claim()).release()


async def test_an_answer_is_not_recorded_by_a_claim_that_was_not_heard_of(clock: Clock) -> None:
    """Nobody renews it, so its key may be another's by then."""
    store = Flaky(clock=lambda: clock.now)
    store.outages = 1
    claim = await Process(store, clock, "one").claim()
    await claim.record_answer(CONVERSATION)
    assert not claim.is_recorded


async def test_long_bodies_have_a_digest_too(store: MemoryStore, clock: Clock) -> None:
    long = b" " * (MIN_THREAD_BYTES + 1)
    digests = [await compute_idempotency_digest(_with_body(body)) for body in (long, long + b" ", long)]
    assert digests[0] == digests[2] != digests[1]


def _with_body(body: bytes) -> ChatRequest:
    return ChatRequest(caller=Caller(tenant="t"), request_id="r", body=body, raw_fields={}, raw_messages=[], model="m")
