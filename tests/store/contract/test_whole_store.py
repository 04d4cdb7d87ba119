"""What a store does as a whole, beside its four contracts."""

from __future__ import annotations

import asyncio

from app.store.contract.store import Store
from app.store.store_factory import create_store
from tests.store.example_logs import Clock, begin, beginnings, bodies, fresh_tenant


async def test_a_check_names_the_backend_and_its_schema(store: Store) -> None:
    info = await store.check()
    assert info.backend in ("memory", "sqlite", "postgresql")
    assert info.schema_version


async def test_a_store_is_scrubbed_without_loss(store: Store) -> None:
    conversation, _ = await begin(store, fresh_tenant(), ["user hi"])
    await store.scrub_deleted_data()
    assert bodies(await store.read_log(conversation, 0, 1)) == ["hi"]


async def test_closing_finishes_what_is_queued(url: str, clock: Clock) -> None:
    store = create_store(url, clock=clock)
    await store.open()
    # More than one batch of any backend.
    queued = [asyncio.ensure_future(store.append(write)) for write in beginnings(300)]
    await store.close()
    done, waiting = await asyncio.wait(queued, timeout=5)
    assert not waiting
    assert [write.exception() for write in done if write.exception()] == []
