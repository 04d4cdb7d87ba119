"""Sums of usage: the same in every store."""

from __future__ import annotations

import asyncio

import pytest

from app.store.contract.store import Store
from app.store.contract.usage import MAX_USAGE_BATCH, UsageGrouping, UsageQuery, UsageTotals
from tests.store.example_logs import fresh_tenant

AHEAD = "2126-11-24"
"""No other test of a shared database writes sums in this century."""


def totals(tenant: str, **fields: object) -> UsageTotals:
    values = {"key_id": "key_1", "day": AHEAD, "model": "small", "requests": 1, "prompt_tokens": 100}
    return UsageTotals(tenant=tenant, **{**values, "cached_tokens": 40, "completion_tokens": 7, **fields})  # type: ignore[arg-type]


async def of_tenant(store: Store, tenant: str, by: UsageGrouping = "key", since_day: str = AHEAD) -> list[UsageTotals]:
    found = await store.sum_usage(UsageQuery(since_day, by))
    return [row for row in found if row.tenant == tenant]


async def test_usage_is_added_up(store: Store) -> None:
    tenant = fresh_tenant()
    await store.add_usage([])
    await store.add_usage([totals(tenant, cost_usd=0.25, unpriced_calls=2), totals(tenant, model="large", cost_usd=1)])
    await store.add_usage([totals(tenant, cost_usd=0.5)])
    expected = UsageTotals(tenant, "key_1", "", "", 3, 2, 300, 120, 21, 1.75)
    assert await of_tenant(store, tenant) == [expected]


async def test_sums_are_split_as_asked_and_ordered_by_their_cost(store: Store) -> None:
    tenant, model = fresh_tenant(), fresh_tenant()
    rows = [
        totals(tenant, key_id="key_1", model=model, cost_usd=0.25),
        totals(tenant, key_id="key_2", cost_usd=2.0),
        totals(tenant, key_id="", model=model, cost_usd=0.5),
    ]
    await store.add_usage(rows)
    assert [row.cost_usd for row in await of_tenant(store, tenant, "tenant")] == [2.75]
    by_key = await of_tenant(store, tenant, "key")
    assert [(row.key_id, row.cost_usd) for row in by_key] == [("key_2", 2.0), ("", 0.5), ("key_1", 0.25)]
    by_model = await store.sum_usage(UsageQuery(AHEAD, "model"))
    ours = [row for row in by_model if row.model == model]
    assert ours == [UsageTotals("", "", "", model, 2, 0, 200, 80, 14, 0.75)]
    everything = await store.sum_usage(UsageQuery(AHEAD, "key"))
    assert await store.sum_usage(UsageQuery(AHEAD, "key", limit=1)) == everything[:1]


async def test_sums_are_split_by_day_and_selected_by_key_and_tenant(store: Store) -> None:
    tenant, key_id = fresh_tenant(), fresh_tenant()
    later = "2126-12-02"
    rows = [
        totals(tenant, key_id=key_id, day=AHEAD, model="large", cost_usd=1.0),
        totals(tenant, key_id=key_id, day=later, model="large", cost_usd=2.0),
        totals(tenant, key_id=key_id, day=later, cost_usd=0.5),
        totals(tenant, key_id="", day=later, cost_usd=8.0),
    ]
    await store.add_usage(rows)
    own = UsageQuery(AHEAD, "day", key_id=key_id)
    assert [(row.day, row.cost_usd) for row in await store.sum_usage(own)] == [(later, 2.5), (AHEAD, 1.0)]
    daily = await store.sum_usage(UsageQuery(AHEAD, "model", is_daily=True, key_id=key_id))
    assert [(row.model, row.day, row.cost_usd) for row in daily] == [
        ("large", later, 2.0),
        ("large", AHEAD, 1.0),
        (rows[2].model, later, 0.5),
    ]
    unkeyed = await store.sum_usage(UsageQuery(AHEAD, "day", tenant=tenant, key_id=""))
    assert [row.cost_usd for row in unkeyed] == [8.0]


async def test_a_keys_cost_is_summed_over_tenants_and_models(store: Store) -> None:
    key_id = fresh_tenant()
    rows = [totals(fresh_tenant(), key_id=key_id, model=model, cost_usd=0.25) for model in ("small", "large")]
    await store.add_usage([*rows, totals(fresh_tenant(), cost_usd=1.0)])
    assert (await store.read_budget_use(key_id=key_id, since_day=AHEAD)).spent_usd == 0.5
    assert (await store.read_budget_use(key_id=fresh_tenant(), since_day=AHEAD)).spent_usd == 0.0


async def test_days_before_are_not_counted(store: Store) -> None:
    tenant = key_id = fresh_tenant()
    days = ("2126-11-23", "2126-11-24", "2126-12-01")
    await store.add_usage(
        [totals(tenant, key_id=key_id, day=day, cost_usd=cost) for day, cost in zip(days, (1.0, 2.0, 4.0), strict=True)]
    )
    assert [row.cost_usd for row in await of_tenant(store, tenant)] == [6.0]
    for since, cost in (("2126-11-01", 7.0), ("2126-11-24", 6.0), ("2126-12-01", 4.0), ("2127-01-01", 0.0)):
        assert (await store.read_budget_use(key_id=key_id, since_day=since)).spent_usd == cost


async def test_old_sums_are_deleted_for_one_tenant_or_for_all(store: Store) -> None:
    tenant, other = fresh_tenant(), fresh_tenant()
    await store.purge_usage(before_day="1950-01-01")
    rows = [totals(name, day=day) for name in (tenant, other) for day in ("1926-11-23", "1926-11-24")]
    await store.add_usage(rows)
    assert await store.purge_usage(before_day="1926-11-24", tenant=tenant) == 1
    assert [row.requests for row in await of_tenant(store, tenant, since_day="1926-11-01")] == [1]
    assert [row.requests for row in await of_tenant(store, other, since_day="1926-11-01")] == [2]
    assert await store.purge_usage(before_day="1926-11-25") == 3
    assert await of_tenant(store, other, since_day="1926-11-01") == []


@pytest.mark.parametrize("count", [1, MAX_USAGE_BATCH])
async def test_writers_at_once_lose_nothing(store: Store, count: int) -> None:
    tenant = fresh_tenant()
    rows = [totals(tenant, model=f"model {index}", cost_usd=0.125) for index in range(count)]
    await asyncio.gather(*(store.add_usage(rows if turn % 2 else rows[::-1]) for turn in range(10)))
    (found,) = await of_tenant(store, tenant)
    assert (found.requests, found.cost_usd) == (10 * count, 1.25 * count)
