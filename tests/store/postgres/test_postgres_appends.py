"""Appends that PostgreSQL gets in one batch end as each would by itself, and wait for nobody else's lock."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from app.store.postgres.backend import PostgresStore
from app.store.store_factory import create_store
from tests.postgres import dsn
from tests.store.example_logs import beginnings, following


@pytest.fixture
async def store(postgres: PostgresStore) -> PostgresStore:
    return postgres


async def test_appends_of_one_moment_are_one_transaction(store: PostgresStore) -> None:
    asked = beginnings(16)
    await asyncio.gather(*(store.append(write) for write in asked))
    transactions = set()
    for write in asked:
        rows = await store._execute_read("SELECT xmin::text FROM conversations WHERE id = $1", (write.conversation.id,))
        transactions.add(rows[0][0])
    assert len(transactions) == 1


async def test_a_conversation_that_somebody_has_locked_keeps_no_other_waiting(
    store: PostgresStore, postgres_url: str
) -> None:
    asked = beginnings(8)
    await asyncio.gather(*(store.append(write) for write in asked))
    rival = await asyncpg.connect(dsn(postgres_url))
    lock = rival.transaction()
    await lock.start()
    await rival.execute("SELECT FROM conversations WHERE id = $1 FOR UPDATE", asked[3].conversation.id)
    writes = [asyncio.ensure_future(store.append(following(write))) for write in asked]
    await asyncio.gather(*(write for place, write in enumerate(writes) if place != 3))
    await asyncio.gather(*(store.append(write) for write in beginnings(3)))
    assert not writes[3].done()
    await lock.rollback()
    await writes[3]
    await rival.close()


async def test_a_write_outlives_whoever_waited_for_it(store: PostgresStore) -> None:
    asked = beginnings(2)
    waiting = [asyncio.ensure_future(store.append(write)) for write in asked]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await waiting[1]
    for write in asked:
        found = await store.find_conversation(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
        assert found is not None


async def test_what_was_submitted_is_written_before_closing(postgres_url: str, store: PostgresStore) -> None:
    closing = create_store(postgres_url)
    await closing.open()
    asked = beginnings(200)
    writes = [asyncio.ensure_future(closing.append(write)) for write in asked]
    await closing.close()
    await asyncio.gather(*writes)
    last = asked[-1].conversation
    assert await store.find_conversation(tenant=last.tenant, conversation_id=last.id) is not None
