"""What only SQLite can get wrong: group commit, other processes, a killed process, a full or broken file."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.sqlite.backend import SqliteStore
from app.store.sqlite.threads import (
    DatabaseThread,
    Job,
    SqliteOptions,
    open_sqlite_connection,
    run_batch_in_transaction,
    run_read_jobs,
)
from app.store.store_factory import create_store
from tests.store.example_logs import (
    Clock,
    begin,
    bodies,
    conversation_of,
    fresh_tenant,
    go_on,
    lease_on,
    links,
    log_of,
)

CHAT = ["user hi", "assistant hello"]


@pytest.fixture
async def store(sqlite_file: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(sqlite_file, clock=clock, options=SqliteOptions(busy_timeout_seconds=0.05))
    await opened.open()
    yield opened
    await opened.close()


async def test_a_failing_job_takes_no_other_with_it(store: SqliteStore) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    lost = await lease_on(store, trunk.root, seconds=0)
    good = [begin(store, fresh_tenant(), CHAT) for _ in range(10)]
    stale = [store.append(LogAppend(trunk, 7, log_of(tenant, ["user x"], after=log[-1]))) for _ in range(10)]
    late = [store.append(LogAppend(trunk, trunk.head_seq, [], fence=lost)) for _ in range(10)]
    mixed = [job for three in zip(good, stale, late, strict=True) for job in three]
    outcomes = await asyncio.gather(*mixed, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1::3]] == [WriteConflict] * 10
    assert [type(outcome) for outcome in outcomes[2::3]] == [LeaseLost] * 10
    for outcome in outcomes[::3]:
        assert isinstance(outcome, tuple)
        conversation, written = outcome
        assert links(await store.read_log(conversation, 0, 9)) == links(written)


def test_a_batch_is_one_transaction_and_a_failed_job_leaves_nothing(sqlite_file: Path) -> None:
    connection = open_sqlite_connection(sqlite_file, SqliteOptions())
    statements: list[str] = []
    connection.set_trace_callback(statements.append)

    def learn(name: str) -> None:
        connection.execute("INSERT INTO model_facts VALUES (?, '{}', '')", (name,))

    def learn_and_fail(connection: sqlite3.Connection) -> None:
        learn("half done")
        raise WriteConflict

    outcomes = run_batch_in_transaction(
        connection, [lambda connection: learn("first"), learn_and_fail, lambda connection: learn("last")]
    )
    assert [type(error) for _, error in outcomes] == [type(None), WriteConflict, type(None)]
    assert statements.count("COMMIT") == 1
    assert statements.count("ROLLBACK") == 1, "the run without savepoints, which the failure ended"
    assert [name for (name,) in connection.execute("SELECT model FROM model_facts")] == ["first", "last"]
    connection.close()


async def test_a_full_disk_fails_the_whole_batch_and_nothing_is_half_written(sqlite_file: Path) -> None:
    def connect() -> sqlite3.Connection:
        connection = open_sqlite_connection(sqlite_file, SqliteOptions())
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        return connection

    def insert(name: str, size: int) -> Job:
        return lambda connection: connection.execute("INSERT INTO model_facts VALUES (?, ?, '')", (name, "x" * size))

    lane = DatabaseThread("writer", connect, run_batch_in_transaction)
    await lane.start()
    jobs = [lane.submit(insert("small", 1)), lane.submit(insert("huge", 1_000_000))]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(outcomes[-1], StoreUnavailable)
    kept = await lane.submit(lambda connection: connection.execute("SELECT model FROM model_facts").fetchall())
    assert len(kept) == len([outcome for outcome in outcomes if not isinstance(outcome, BaseException)])
    await lane.stop()


async def test_a_fault_of_our_own_reaches_the_caller_and_the_thread_lives_on(sqlite_file: Path) -> None:
    lane = DatabaseThread("reader", lambda: open_sqlite_connection(sqlite_file, SqliteOptions()), run_read_jobs)
    await lane.start()
    with pytest.raises(ZeroDivisionError):
        await lane.submit(lambda connection: 1 // 0)
    with pytest.raises(sqlite3.OperationalError):
        await lane.submit(lambda connection: connection.execute("SELECT nonsense"))
    assert await lane.submit(lambda connection: 1) == 1
    await lane.stop()


async def test_a_write_waits_for_another_process_only_so_long(store: SqliteStore, sqlite_file: Path) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    other = sqlite3.connect(sqlite_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await go_on(store, conversation, log, ["user waits"])
    assert bodies(await store.read_log(conversation, 0, 9)) == ["hi", "hello"], "readers do not wait"
    other.execute("ROLLBACK")
    other.close()
    await go_on(store, conversation, log, ["user at last"])


async def test_what_was_queued_is_written_before_closing(sqlite_file: Path, clock: Clock) -> None:
    store = SqliteStore(sqlite_file, clock=clock)
    await store.open()
    tenant = fresh_tenant()
    writes = [asyncio.ensure_future(begin(store, tenant, [f"user {number}"])) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    conversations = [conversation for conversation, _ in await asyncio.gather(*writes)]
    with pytest.raises(StoreUnavailable):
        await store.check()
    again = SqliteStore(sqlite_file, clock=clock)
    await again.open()
    for conversation in conversations:
        assert await again.find_conversation(tenant=tenant, conversation_id=conversation.id) is not None
    await again.close()


async def test_a_write_outlives_whoever_waited_for_it(store: SqliteStore) -> None:
    tenant = fresh_tenant()
    log = log_of(tenant, CHAT)
    conversation = conversation_of(tenant, log)
    waiting = asyncio.ensure_future(store.append(LogAppend(conversation, -1, log, creates_conversation=True)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await store.merge_model_facts(model="m", facts={})  # comes after it in the queue
    assert await store.find_conversation(tenant=tenant, conversation_id=conversation.id) is not None


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
async def test_durability_is_as_configured(sqlite_file: Path, synchronous: str) -> None:
    connection = open_sqlite_connection(sqlite_file, SqliteOptions("FULL" if synchronous == "FULL" else "NORMAL"))
    assert connection.execute("PRAGMA synchronous").fetchone() == ({"NORMAL": 1, "FULL": 2}[synchronous],)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_store_without_a_schema_does_not_open(tmp_path: Path) -> None:
    store = create_store(f"sqlite:///{tmp_path}/deep/down/empty.db")
    with pytest.raises(StoreUnavailable, match="migrate"):
        await store.open()


async def test_a_file_that_is_no_database_does_not_open(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("certainly not a database " * 100)
    store = create_store(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(StoreUnavailable):
        await store.open()


async def test_a_directory_that_cannot_be_made_is_said_to_be_the_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="directory"):
        create_store(f"sqlite:///{tmp_path}/file/store.db")


_WRITE_UNTIL_KILLED = """
import asyncio, sys
from app.store.store_factory import create_store
from tests.store.example_logs import begin
async def main():
    store = create_store(sys.argv[1])
    await store.open()
    number = 0
    while True:
        number += 1
        wave = [begin(store, "tenant", [f"user {number} {i}"], external_id=f"chat-{number}-{i}") for i in range(4)]
        for conversation, _ in await asyncio.gather(*wave):
            print(conversation.external_id, flush=True)
asyncio.run(main())
"""


async def test_what_a_killed_process_was_told_is_stored_is_stored(sqlite_url: str, clock: Clock) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _WRITE_UNTIL_KILLED,
        sqlite_url,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    told = [(await process.stdout.readline()).decode().strip() for _ in range(50)]
    process.kill()
    rest, _ = await process.communicate()
    told += rest.decode().split("\n")[:-1]
    store = create_store(sqlite_url, clock=clock)
    await store.open()
    for external_id in told:
        found = await store.find_conversation(tenant="tenant", conversation_id=external_id)
        assert found is not None
        assert len(await store.read_log(found, 0, 9)) == 1
    await store.close()


async def test_two_processes_write_to_one_file(sqlite_url: str, clock: Clock) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _WRITE_UNTIL_KILLED,
        sqlite_url,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    store = create_store(sqlite_url, clock=clock)
    await store.open()
    tenant = fresh_tenant()
    for number in range(20):
        theirs = (await process.stdout.readline()).decode().strip()
        assert await store.find_conversation(tenant="tenant", conversation_id=theirs) is not None
        ours, log = await begin(store, tenant, [f"user {number}"])
        assert links(await store.read_log(ours, 0, 9)) == links(log)
    process.kill()
    await process.communicate()
    await store.close()
