"""Gateways whose clocks disagree by minutes share one PostgreSQL: its clock decides who holds what, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from app.store.contract.leases import Lease
from app.store.contract.store import Store
from app.store.store_factory import create_store
from tests.store.example_logs import fresh_tenant

SHORT_SECONDS = 0.3


@pytest.fixture(params=[10, -10], ids=["ahead", "behind"])
async def two(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[tuple[Store, Store]]:
    """One with the right time, and one that is minutes off."""
    off = timedelta(minutes=request.param)
    async with AsyncExitStack() as stack:
        stores = create_store(postgres_url), create_store(postgres_url, clock=lambda: datetime.now(UTC) + off)
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        yield stores


async def test_a_lease_is_neither_stolen_while_it_lives_nor_kept_once_it_has_ended(two: tuple[Store, Store]) -> None:
    for holds, wants in (two, two[::-1]):
        root = fresh_tenant()
        held = await holds.claim_lease(root=root, key="key", holder="holds", seconds=30)
        assert isinstance(held, Lease)
        assert await wants.claim_lease(root=root, key="key", holder="wants", seconds=30) is None
        assert await holds.renew_leases([held], SHORT_SECONDS) == []
        assert await wants.claim_lease(root=root, key="key", holder="wants", seconds=30) is None
        await asyncio.sleep(SHORT_SECONDS)
        taken = await wants.claim_lease(root=root, key="key", holder="wants", seconds=30)
        assert taken is not None
        assert taken.token > held.token


async def test_a_request_key_is_neither_stolen_while_it_is_answered_nor_stuck(two: tuple[Store, Store]) -> None:
    for answers, repeats in (two, two[::-1]):
        tenant = fresh_tenant()

        async def claim(store: Store, holder: str, seconds: float, *, tenant: str = tenant) -> str:
            claimed = await store.claim_idempotency_key(
                tenant=tenant, key="k", digest=b"d", holder=holder, seconds=seconds, kept_seconds=60
            )
            return claimed.state

        assert await claim(answers, "one", 60) == "claimed"
        assert await claim(repeats, "two", 60) == "running"
        assert await claim(answers, "one", SHORT_SECONDS) == "claimed"
        await asyncio.sleep(SHORT_SECONDS)
        assert await claim(repeats, "two", 60) == "claimed"
        await repeats.complete_idempotency_key(tenant=tenant, key="k", holder="two", conversation_id="conv", seq=1)
        assert await claim(answers, "three", 60) == "done"
        await answers.purge_idempotency_keys()
        assert await claim(repeats, "four", 60) == "done"
