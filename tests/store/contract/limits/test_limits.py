"""Reservations of budgets and counts of rates: the same in every store, and exact when many ask at once."""

from __future__ import annotations

import asyncio

import pytest

from app.store.contract.limits import BudgetReservation, RateLimit
from app.store.contract.store import Store
from app.store.contract.usage import UsageTotals
from app.store.postgres.backend import PostgresStore
from app.store.store_factory import create_store
from tests.store.example_logs import Clock, fresh_tenant

MONTH = "2126-11-01"


def reservation(key_id: str, usd: float, holder: str = "one") -> BudgetReservation:
    return BudgetReservation(fresh_tenant(), key_id, holder, usd)


async def reserve(store: Store, one: BudgetReservation, budget_usd: float = 1.0, seconds: float = 60.0) -> bool:
    use = await store.reserve_budget(one, budget_usd=budget_usd, since_day=MONTH, seconds=seconds)
    return use.is_granted


async def spend(store: Store, key_id: str, usd: float, day: str = "2126-11-24") -> None:
    await store.add_usage([UsageTotals(fresh_tenant(), key_id, day, "m", cost_usd=usd)])


async def test_a_reservation_fits_beside_what_is_spent_and_reserved_or_is_not_made(store: Store) -> None:
    key_id = fresh_tenant()
    await spend(store, key_id, 0.25)
    await spend(store, key_id, 5.0, day="2126-10-31")
    first = reservation(key_id, 0.5)
    assert await reserve(store, first)
    assert not await reserve(store, reservation(key_id, 0.5))
    assert await reserve(store, reservation(key_id, 0.25))
    assert await reserve(store, reservation(fresh_tenant(), 1.0))
    use = await store.read_budget_use(key_id=key_id, since_day=MONTH)
    assert (use.spent_usd, use.reserved_usd, use.is_granted) == (0.25, 0.75, False)
    await store.release_reservations([first.id, fresh_tenant()])
    assert await reserve(store, reservation(key_id, 0.5))


async def test_the_reservations_of_a_killed_process_expire_and_those_of_a_running_one_are_renewed(
    store: Store, clock: Clock
) -> None:
    killed, running = fresh_tenant(), fresh_tenant()
    for holder in (killed, running):
        await reserve(store, reservation(holder, 1.0, holder), seconds=0.2)
    await store.renew_reservations(holder=running, seconds=60)
    clock.forward(0.2)
    await asyncio.sleep(0.25)
    assert await reserve(store, reservation(killed, 1.0))
    assert not await reserve(store, reservation(running, 1.0))
    await store.purge_limits()
    assert not await reserve(store, reservation(running, 1.0))


@pytest.mark.parametrize("count", [1, 3])
async def test_of_many_at_once_only_so_many_are_granted_as_fit(postgres_url: str, count: int) -> None:
    """The same over several processes."""
    stores = [create_store(postgres_url, clock=Clock(), timeout_seconds=20) for _ in range(count)]
    key_id = fresh_tenant()
    for store in stores:
        await store.open()
    granted = await asyncio.gather(*(reserve(stores[i % count], reservation(key_id, 0.125)) for i in range(60)))
    limits = [RateLimit(f"all {key_id}", 25, None), RateLimit(key_id, 20, 10_000)]
    counts = await asyncio.gather(*(stores[i % count].count_call(limits, tokens=5) for i in range(60)))
    for store in stores:
        await store.close()
    assert sum(granted) == 8
    assert sum(one.counted_at is not None for one in counts) == 20


async def test_a_call_is_counted_in_all_its_scopes_or_in_none(store: Store) -> None:
    everybody, tenant, other = fresh_tenant(), fresh_tenant(), fresh_tenant()
    ours = [RateLimit(everybody, 3, None), RateLimit(tenant, 2, 100)]
    first, second, third = [await store.count_call(ours, tokens=10) for _ in range(3)]
    assert first.counted_at is not None
    assert [(use.requests, use.tokens) for use in first.uses] == [(1, 10), (1, 10)]
    assert [use.requests for use in second.uses] == [2, 2]
    assert (third.counted_at, [use.requests for use in third.uses]) == (None, [2, 2])
    assert all(1 <= use.frees_after_seconds <= use.resets_after_seconds <= 61 for use in third.uses)
    theirs = [RateLimit(everybody, 3, None), RateLimit(other, None, None)]
    assert (await store.count_call(theirs, tokens=0)).counted_at is not None
    assert (await store.count_call(theirs, tokens=0)).counted_at is None


async def test_tokens_are_limited_and_corrected_when_they_are_known(store: Store) -> None:
    limits = [RateLimit(fresh_tenant(), None, 100)]
    first = await store.count_call(limits, tokens=5000)
    assert first.counted_at is not None, "a call that is larger than the limit is admitted alone"
    assert (await store.count_call(limits, tokens=1)).counted_at is None
    await store.correct_tokens([limits[0].scope], counted_at=first.counted_at, added_tokens=-4930)
    assert (await store.count_call(limits, tokens=31)).counted_at is None
    second = await store.count_call(limits, tokens=30)
    assert (second.counted_at is not None, second.uses[0].tokens) == (True, 100)


async def test_a_call_is_forgotten_after_a_minute(store: Store, clock: Clock) -> None:
    if isinstance(store, PostgresStore):
        pytest.skip("its own clock counts")
    limits = [RateLimit(fresh_tenant(), 1, None)]
    await store.count_call(limits, tokens=0)
    for seconds, is_counted in ((60, False), (1, True), (0, False)):
        clock.forward(seconds)
        assert ((await store.count_call(limits, tokens=0)).counted_at is not None) == is_counted
    clock.forward(61)
    await store.purge_limits()
    assert (await store.count_call(limits, tokens=0)).uses[0].requests == 1
