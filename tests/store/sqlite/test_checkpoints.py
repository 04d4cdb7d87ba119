"""The write-ahead log of SQLite is copied into the file by a thread of its own, and stays small."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from app.store.sqlite import jobs
from app.store.sqlite.backend import SqliteStore
from app.store.sqlite.jobs import truncate_write_ahead_log
from app.store.sqlite.threads import SqliteOptions, open_sqlite_connection
from tests.store.example_logs import Clock, begin, fresh_tenant

PAGE_BYTES = 4096
NEVER_SECONDS = 3600.0


def file_bytes(path: Path) -> int:
    return path.stat().st_size


def log_bytes(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


def count_in_file(path: Path, word: str) -> int:
    """Without the log."""
    return path.read_bytes().count(word.encode())


class CheckpointThread:
    """Watches the statements of a store's thread for checkpoints."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.copies = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def connect(self, path: Path, options: SqliteOptions) -> sqlite3.Connection:
        connection = open_sqlite_connection(path, options)
        if threading.current_thread().name == "store-checkpoints":
            connection.set_trace_callback(self._watch)
        return connection

    def _watch(self, statement: str) -> None:
        self.statements.append(statement)
        if "wal_checkpoint(PASSIVE)" in statement:
            self._loop.call_soon_threadsafe(self.copies.set)


async def test_a_commit_copies_nothing_and_the_thread_copies_it_all(
    sqlite_file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", NEVER_SECONDS)
    store = SqliteStore(sqlite_file, clock=clock)
    await store.open()
    before = file_bytes(sqlite_file)
    pages = 6_000
    for _ in range(6):
        await begin(store, fresh_tenant(), [f"user sesame {'x' * (pages // 6 * PAGE_BYTES)}"])
    assert log_bytes(sqlite_file) > pages * PAGE_BYTES
    assert file_bytes(sqlite_file) == before, "no commit ran a checkpoint"
    store._start_checkpoint()
    await store._checkpoint_thread.submit(lambda connection: None)
    assert file_bytes(sqlite_file) > before + pages * PAGE_BYTES
    await begin(store, fresh_tenant(), ["user small"])
    assert count_in_file(sqlite_file, "sesame") == 6
    await store.close()


async def test_a_checkpoint_follows_each_first_commit(
    sqlite_file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", 0)
    watched = CheckpointThread()
    store = SqliteStore(sqlite_file, clock=clock, connect=watched.connect)
    await store.open()
    for word in ("sesame", "xyzzy"):
        await store._checkpoint_thread.submit(lambda connection: None)
        watched.copies.clear()
        await begin(store, fresh_tenant(), [f"user {word}"])
        await watched.copies.wait()
        await store._checkpoint_thread.submit(lambda connection: None)
        assert count_in_file(sqlite_file, word)
    await store.close()


async def test_the_log_is_emptied_in_the_same_thread(sqlite_file: Path, clock: Clock) -> None:
    """In another thread it would meet a checkpoint at work, and SQLite would refuse it."""
    watched = CheckpointThread()
    store = SqliteStore(sqlite_file, clock=clock, connect=watched.connect)
    await store.open()
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, ["user sesame"])
    await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert "PRAGMA wal_checkpoint(TRUNCATE)" in watched.statements
    await store.close()


async def test_the_log_begins_again_under_load(
    sqlite_file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the thread, then commits: one of them copies the rest, the next one begins the log again."""
    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", NEVER_SECONDS)
    limit_pages = 200

    def connect(path: Path, options: SqliteOptions) -> sqlite3.Connection:
        connection = open_sqlite_connection(path, options)
        (pages,) = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
        assert 0 < pages * PAGE_BYTES <= 64 << 20
        connection.execute(f"PRAGMA wal_autocheckpoint = {limit_pages}")
        return connection

    store = SqliteStore(sqlite_file, clock=clock, connect=connect)
    await store.open()
    tenant, text = fresh_tenant(), "x" * 10 * PAGE_BYTES
    for number in range(100):
        await begin(store, tenant, [f"user {number} {text}"])
        if number % 10 == 0:
            store._start_checkpoint()
            await store._checkpoint_thread.submit(lambda connection: None)
    assert file_bytes(sqlite_file) > 5 * limit_pages * PAGE_BYTES // 2
    assert log_bytes(sqlite_file) < 2 * limit_pages * PAGE_BYTES
    await store.close()


async def test_a_closed_store_starts_no_checkpoint(
    sqlite_file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", NEVER_SECONDS)
    store = SqliteStore(sqlite_file, clock=clock)
    await store.open()
    await begin(store, fresh_tenant(), ["user hi"])
    timer = store._checkpoint_timer
    assert timer is not None
    await store.close()
    assert timer.cancelled()


def test_emptying_the_log_waits_for_a_checkpoint_of_another_process(
    sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses a second checkpoint at once, whatever the busy timeout."""
    writing, copying, emptying = [open_sqlite_connection(sqlite_file, SqliteOptions()) for _ in range(3)]
    writing.execute("INSERT INTO model_facts VALUES ('sesame', '{}', '')")
    writing.execute("BEGIN IMMEDIATE")
    # Holds the lock of checkpoints while it waits for the writer.
    is_copying = threading.Event()
    copying.set_trace_callback(lambda _: is_copying.set())
    copying_thread = threading.Thread(target=copying.execute, args=("PRAGMA wal_checkpoint(FULL)",))
    copying_thread.start()
    is_copying.wait()

    def end_other_checkpoint(_: float) -> None:
        if writing.in_transaction:
            writing.execute("ROLLBACK")
        copying_thread.join()

    monkeypatch.setattr(jobs, "sleep", end_other_checkpoint)
    truncate_write_ahead_log(emptying)
    assert log_bytes(sqlite_file) == 0
    end_other_checkpoint(0)
    for connection in (writing, copying, emptying):
        connection.close()
