"""Claims of idempotency keys: renewed while the answer takes its time, and free again after their process has died."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from app.errors import IdempotencyKeyInUse
from app.exchange import request_keys
from app.exchange.request import Caller, ChatRequest
from app.exchange.request_keys import CLAIM_SECONDS, Claim, RequestKeys
from app.exchange.tasks import Tasks
from app.store.memory import MemoryStore
from tests.edge.kept import until

REQUEST = ChatRequest(
    caller=Caller(tenant="t"), request_id="r", body=b"{}", fields={}, raws=[], model="m", idempotency_key="k"
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
        self.keys = RequestKeys(
            store=store,
            tasks=Tasks(),
            new_holder=lambda: name,
            wait_seconds=10,
            clock=clock.seconds,
            sleep=clock.sleep,
            random=lambda: 0.5,
        )

    async def claim(self) -> Claim:
        claim = await self.keys.claim(REQUEST)
        assert isinstance(claim, Claim)
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
    monkeypatch.setattr(request_keys, "RENEW_SECONDS", 0.001)
    claim = await Process(store, clock, "one").claim()
    clock.moved(CLAIM_SECONDS - 1)
    before = claim.renewal
    await until(lambda: claim.renewal is not before)
    assert claim.renewal is not None
    await claim.renewal
    clock.moved(CLAIM_SECONDS - 20)
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    await claim.give_up()


async def test_a_claim_whose_process_died_ends_by_itself(store: MemoryStore, clock: Clock) -> None:
    died = await Process(store, clock, "one").claim()
    assert died.timer is not None
    died.timer.cancel()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "two").claim()
    clock.moved(CLAIM_SECONDS)
    claim = await Process(store, clock, "two").claim()
    await died.give_up()
    with pytest.raises(IdempotencyKeyInUse):
        await Process(store, clock, "three").claim()
    await claim.give_up()


async def test_a_claim_that_was_given_up_is_not_renewed_any_more(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_keys, "RENEW_SECONDS", 0.001)
    claim = await Process(store, clock, "one").claim()
    await until(lambda: claim.renewal is not None)
    await claim.give_up()
    await claim.give_up()
    await asyncio.sleep(0.01)
    other = await Process(store, clock, "two").claim()
    await other.give_up()


async def test_long_bodies_have_a_digest_too(store: MemoryStore, clock: Clock) -> None:
    long = b" " * (request_keys.THREAD_BYTES + 1)
    digests = [await request_keys._digest_of(_with_body(body)) for body in (long, long + b" ", long)]
    assert digests[0] == digests[2] != digests[1]


def _with_body(body: bytes) -> ChatRequest:
    return ChatRequest(caller=Caller(tenant="t"), request_id="r", body=body, fields={}, raws=[], model="m")
