"""Threads that own one SQLite connection each and take jobs from the event loop in batches.

A hop costs one queue entry there and one `call_soon_threadsafe` back for a whole batch. The writer commits a batch
as one transaction (group commit), each job behind a savepoint, so that a failing job takes no other with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeVar

from app.errors import StoreUnavailable
from app.store import sqlite_search

Result = TypeVar("Result")
Job = Callable[[sqlite3.Connection], Any]
Outcome = tuple[Any, BaseException | None]
Work = Callable[[sqlite3.Connection, Sequence[Job]], list[Outcome]]

MAX_BATCH: Final = 256

_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """How the file is used.

    `synchronous`: ``NORMAL`` keeps every commit through a crash of the process, ``FULL`` through a power cut as well
    (one more fsync for each batch of commits). `busy_timeout_seconds` bounds the wait for another process's commit.
    """

    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    busy_timeout_seconds: float = 5.0


def open_file(path: Path, options: SqliteOptions) -> sqlite3.Connection:
    """A connection in autocommit mode to a file in write-ahead-log mode."""
    connection = sqlite3.connect(
        path, timeout=options.busy_timeout_seconds, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {options.synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    # What is deleted is overwritten with zeros: erased text must not linger in pages that are free.
    connection.execute("PRAGMA secure_delete = ON")
    # 16 MB between checkpoints instead of 4: a quarter less work for each commit.
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    sqlite_search.prepare(connection)
    return connection


def unavailable(error: BaseException) -> BaseException:
    """A driver's error as `StoreUnavailable` if it says that the file cannot be used now; others unchanged."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code & 0xFF not in _UNAVAILABLE:
        return error
    ours = StoreUnavailable(f"The database file cannot be used: {error}.", retry_after_seconds=1.0)
    ours.__cause__ = error
    return ours


def read_each(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Run jobs that only read."""
    return [_outcome(connection, job) for job in jobs]


def commit_together(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Run jobs in one transaction. None has succeeded before the commit has.

    Nearly always all of them do: the savepoints that keep one failure from the others, and cost as much as the writes,
    are only set in a second run, after one failed.
    """
    try:
        return _commit(connection, jobs, _run)
    except _JobFailed as failed:
        _roll_back(connection)
        if len(jobs) == 1:
            return [(None, failed.error)]
    except sqlite3.Error as error:
        _roll_back(connection)
        return [(None, error)] * len(jobs)
    try:
        return _commit(connection, jobs, _attempt)
    except sqlite3.Error as error:
        _roll_back(connection)
        return [(None, error)] * len(jobs)


class _JobFailed(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _commit(
    connection: sqlite3.Connection, jobs: Sequence[Job], run: Callable[[sqlite3.Connection, Job], Outcome]
) -> list[Outcome]:
    connection.execute("BEGIN IMMEDIATE")
    outcomes = [run(connection, job) for job in jobs]
    connection.execute("COMMIT")
    return outcomes


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _run(connection: sqlite3.Connection, job: Job) -> Outcome:
    value, error = _outcome(connection, job)
    if error is not None:
        raise _JobFailed(error)
    return value, None


def _attempt(connection: sqlite3.Connection, job: Job) -> Outcome:
    connection.execute("SAVEPOINT job")
    value, error = _outcome(connection, job)
    if error is not None:
        if not connection.in_transaction:
            # A full disk or an I/O error has made SQLite roll back everything: the whole batch has failed.
            raise error
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
    return value, error


def _outcome(connection: sqlite3.Connection, job: Job) -> Outcome:
    try:
        return job(connection), None
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the job
        return None, error


class Lane:
    """One thread, one connection, one queue. Jobs run in the order in which they were submitted."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection], work: Work) -> None:
        self._connect = connect
        self._work = work
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Job] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the thread and wait until it is connected.

        Raises:
            StoreUnavailable: the file cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread.start()
        await self.run(lambda connection: None)

    def run(self, job: Callable[[sqlite3.Connection], Result]) -> asyncio.Future[Result]:
        """Queue a job; the future has its result once it is durable.

        Raises:
            StoreUnavailable: the store is not open.
        """
        if self._loop is None or self._ended is None or self._ended.done():
            raise StoreUnavailable("The store is not open.")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put((future, job))
        return future

    async def stop(self) -> None:
        """Finish what is queued, then close the connection."""
        if self._ended is None:
            return
        self._queue.put(None)
        await asyncio.shield(self._ended)

    def _run(self) -> None:
        try:
            connection = self._connect()
        except sqlite3.Error as error:
            self._refuse(error)
            return
        while True:
            batch = [self._queue.get()]
            batch += [self._queue.get() for _ in range(min(self._queue.qsize(), MAX_BATCH - 1))]
            entries = [entry for entry in batch if entry is not None]
            if entries:
                outcomes = self._work(connection, [job for _, job in entries])
                self._deliver([(future, outcome) for (future, _), outcome in zip(entries, outcomes, strict=True)])
            if len(entries) < len(batch):
                connection.close()
                self._end()
                return

    def _refuse(self, error: sqlite3.Error) -> None:
        """The connection could not be made: the first job, which waits for it, gets the error."""
        first = self._queue.get()
        if first is not None:
            self._deliver([(first[0], (None, error))])
        self._end()

    def _deliver(self, settled: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
        self._call(_settle, settled)

    def _end(self) -> None:
        if self._ended is not None:
            self._call(_finish, self._ended)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        # The loop is gone when the process ends without closing the store; nobody waits for an outcome then.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)


def _settle(settled: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (value, error) in settled:
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(unavailable(error))


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
