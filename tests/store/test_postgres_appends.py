"""Appends that PostgreSQL gets in one batch end as each would by itself, and wait for nobody else's lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec.structs import replace

from app.store.base import HeadMoved, LeaseLost
from app.store.connect import open_store
from app.store.postgres import PostgresStore
from tests.store.logs import NOON, Clock, lease_on
from tests.store.test_sqlite_appends import beginnings, following


@pytest.fixture
async def store(postgres_url: str, clock: Clock) -> AsyncIterator[PostgresStore]:
    opened = open_store(postgres_url, clock=clock, timeout_seconds=2)
    assert isinstance(opened, PostgresStore)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("count", [1, 2, 37])
async def test_each_conversation_has_what_was_appended_to_it(store: PostgresStore, count: int) -> None:
    asked = beginnings(count)
    await asyncio.gather(*(store.append(write) for write in asked))
    answered = [following(write) for write in asked]
    more = beginnings(count)
    await asyncio.gather(*(store.append(write) for pair in zip(answered, more, strict=True) for write in pair))
    for question, answer in zip(asked, answered, strict=True):
        found = await store.get(tenant=question.conversation.tenant, conversation_id=question.conversation.id)
        assert found == replace(answer.conversation, created_at=NOON, updated_at=NOON)
        log = await store.read(found, 0, 9)
        assert [entry.message for entry in log] == [entry.message for entry in (*question.messages, *answer.messages)]


async def test_appends_of_one_moment_are_one_transaction(store: PostgresStore) -> None:
    asked = beginnings(16)
    await asyncio.gather(*(store.append(write) for write in asked))
    transactions = set()
    for write in asked:
        rows = await store._ask("SELECT xmin::text FROM conversations WHERE id = $1", (write.conversation.id,))
        transactions.add(rows[0][0])
    assert len(transactions) == 1


async def test_one_that_fails_takes_no_other_with_it(store: PostgresStore) -> None:
    asked = beginnings(9)
    await asyncio.gather(*(store.append(write) for write in asked))
    lost = await lease_on(store, asked[2].conversation.root, seconds=0)
    writes = [following(write) for write in asked]
    writes[1] = replace(writes[1], after_seq=7)
    writes[2] = replace(writes[2], fence=lost)
    writes[3] = asked[3]
    outcomes = await asyncio.gather(*(store.append(write) for write in writes), return_exceptions=True)
    failed = [None, HeadMoved, LeaseLost, HeadMoved]
    assert [outcome and type(outcome) for outcome in outcomes] == failed + [None] * 5
    for place, write in enumerate(asked):
        found = await store.get(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
        assert found is not None
        assert found.head_seq == (0 if place in (1, 2, 3) else 1)


async def test_a_conversation_that_somebody_has_locked_keeps_no_other_waiting(
    store: PostgresStore, postgres_url: str
) -> None:
    asked = beginnings(8)
    await asyncio.gather(*(store.append(write) for write in asked))
    rival = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
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
        found = await store.get(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
        assert found is not None


async def test_what_was_submitted_is_written_before_closing(postgres_url: str, store: PostgresStore) -> None:
    closing = open_store(postgres_url)
    await closing.open()
    asked = beginnings(200)
    writes = [asyncio.ensure_future(closing.append(write)) for write in asked]
    await closing.close()
    await asyncio.gather(*writes)
    last = asked[-1].conversation
    assert await store.get(tenant=last.tenant, conversation_id=last.id) is not None
