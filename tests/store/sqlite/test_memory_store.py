"""The store in memory is SQLite with one connection and no file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.errors import StoreUnavailable
from app.store.sqlite.memory_store import SqliteMemoryStore
from migrations.run import required_schema_version
from tests.store.example_logs import Clock, begin, fresh_tenant, go_on


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[SqliteMemoryStore]:
    opened = SqliteMemoryStore(clock=clock)
    await opened.open()
    yield opened
    await opened.close()


async def test_it_has_the_newest_schema_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteMemoryStore(clock=clock)
    await store.open()
    info = await store.check()
    assert (info.backend, info.schema_version, info.details) == ("memory", required_schema_version(), {})
    conversation, _ = await begin(store, fresh_tenant(), ["user hello"])
    assert [row[2] for row in await store._execute_read("PRAGMA database_list", ())] == [""]
    await store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    await store.scrub_deleted_data()
    await store.close()
    assert count_files(tmp_path) == 0


def count_files(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def test_one_thread_reads_and_writes(clock: Clock) -> None:
    before, store = set(threading.enumerate()), SqliteMemoryStore(clock=clock)
    await store.open()
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["store-writer"]
    await store.close()


async def test_reads_beside_writes_are_never_locked(store: SqliteMemoryStore) -> None:
    tenant = fresh_tenant()

    async def talk(number: int) -> list[int]:
        conversation, log = await begin(store, tenant, [f"user question {number}"])
        for turn in range(5):
            conversation, log = await go_on(store, conversation, log, [f"assistant {turn}", f"user {turn}"])
        return [entry.seq for entry in await store.read_log(conversation, 0, 99)]

    assert await asyncio.gather(*map(talk, range(20))) == [list(range(11))] * 20


async def test_a_read_that_fails_does_not_undo_a_write_beside_it(store: SqliteMemoryStore) -> None:
    tenant = fresh_tenant()
    written, failed = await asyncio.gather(
        begin(store, tenant, ["user hello"]), store._execute_read("SELECT nothing", ()), return_exceptions=True
    )
    assert isinstance(failed, sqlite3.OperationalError)
    assert not isinstance(written, BaseException)
    assert await store.find_conversation(tenant=tenant, conversation_id=written[0].id) is not None


async def test_closing_it_deletes_its_data(clock: Clock) -> None:
    tenant, first, second = fresh_tenant(), SqliteMemoryStore(clock=clock), SqliteMemoryStore(clock=clock)
    await first.open()
    await second.open()
    conversation, _ = await begin(first, tenant, ["user hello"])
    assert await second.find_conversation(tenant=tenant, conversation_id=conversation.id) is None
    await first.close()
    await second.close()
    with pytest.raises(StoreUnavailable):
        await first.find_conversation(tenant=tenant, conversation_id=conversation.id)
