"""Threads that own one SQLite connection each and take jobs from the event loop in batches.

Jobs that the event loop submits within one iteration, or while a batch is running, form one batch. A batch costs one
queue entry to the thread and one `call_soon_threadsafe` back. The writer commits a batch as one transaction (group
commit). If a job fails, the writer runs the batch again with a savepoint for each job, so that the failure does not
affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeVar

from app.errors import StoreUnavailable
from app.store.sqlite import term_index

Result = TypeVar("Result")
Job = Callable[[sqlite3.Connection], Any]
Outcome = tuple[Any, BaseException | None]
RunBatch = Callable[[sqlite3.Connection, Sequence[Job]], list[Outcome]]

Batch = tuple[list["asyncio.Future[Any]"], list[Job]]
"""Jobs, and the futures of their outcomes in the same order."""

MAX_BATCH_JOBS: Final = 256
"""Bounds the time that other processes wait for the write lock, and the work to be run again after a failure."""

# SQLite's codes that say "the file cannot be used now"; others are mistakes in our statements and stay as they are.
_UNAVAILABLE_CODES: Final = frozenset(
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

    `synchronous`: ``NORMAL`` keeps every commit when the process crashes, ``FULL`` also when the power fails (one more
    fsync for each batch of commits). `busy_timeout_seconds` bounds the wait for another process's commit.
    """

    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    busy_timeout_seconds: float = 5.0


def create_private_file(path: Path) -> None:
    """Creates an empty file and its folder for this user alone, unless they exist: the file holds conversations. SQLite
    gives its further files the same permissions.

    Raises:
        OSError: the folder or the file cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)


def open_sqlite_connection(path: Path, options: SqliteOptions) -> sqlite3.Connection:
    """Opens a connection in autocommit mode to a file in write-ahead-log mode."""
    connection = sqlite3.connect(
        path, timeout=options.busy_timeout_seconds, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {options.synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    # Overwrites deleted text with zeros: erased text must not stay in free pages.
    connection.execute("PRAGMA secure_delete = ON")
    # When the log has so many pages (64 MB), a commit copies what `copy_write_ahead_log` has not copied yet.
    connection.execute("PRAGMA wal_autocheckpoint = 16000")
    # 64 MB: a log that one long reader has made grow does not keep its size for good.
    connection.execute("PRAGMA journal_size_limit = 67108864")
    term_index.register_sql_functions(connection)
    return connection


def translate_driver_error(error: BaseException) -> BaseException:
    """Returns `StoreUnavailable` for a driver's error that says that the file cannot be used now; other errors
    unchanged.
    """
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary code; SQLite reports extended ones.
    if code is None or code & 0xFF not in _UNAVAILABLE_CODES:
        return error
    translated = StoreUnavailable(f"The database file cannot be used: {error}.", retry_after_seconds=1.0)
    translated.__cause__ = error
    return translated


def run_read_jobs(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Runs jobs that only read, each with its own result or error."""
    return list(map(_run_job, repeat(connection), jobs))


def run_batch_in_transaction(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Outcome]:
    """Runs jobs in one transaction. A job has succeeded only when the commit has.

    The first run has no savepoints, which cost as much as the writes. Only if a job fails, which is rare, the second
    run sets a savepoint for each job, so that the failure does not affect the others.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            values = [job(connection) for job in jobs]
        # The transaction must be rolled back whatever the job raises.
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the job
            _roll_back(connection)
            # Only one job: its error is the result, and no other job needs a second run.
            if len(jobs) == 1:
                return [(None, error)]
        else:
            connection.execute("COMMIT")
            return list(zip(values, repeat(None)))
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_run_in_savepoint(connection, job) for job in jobs]
        connection.execute("COMMIT")
        return outcomes
    # An error of BEGIN or COMMIT, or one that has made SQLite roll back everything.
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the jobs; the thread must go on
        _roll_back(connection)
        return [(None, error)] * len(jobs)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        # SQLite rolls back by itself after some errors, and then refuses this.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _run_in_savepoint(connection: sqlite3.Connection, job: Job) -> Outcome:
    connection.execute("SAVEPOINT job")
    value, error = _run_job(connection, job)
    if error is not None:
        if not connection.in_transaction:
            # The error (full disk, I/O) has made SQLite roll back everything: the whole batch has failed.
            raise error
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
    return value, error


def _run_job(connection: sqlite3.Connection, job: Job) -> Outcome:
    try:
        return job(connection), None
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the job
        return None, error


class DatabaseThread:
    """One thread with one connection and one queue. Jobs run in the order in which they were submitted.

    Args:
        on_batch_end: called in the event loop after each batch.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        run_batch: RunBatch,
        on_batch_end: Callable[[], None] | None = None,
    ) -> None:
        self._connect = connect
        self._run_batch = run_batch
        self._on_batch_end = on_batch_end
        self._submitted: list[Job] = []
        """Jobs that the thread has not received yet."""
        self._futures: list[asyncio.Future[Any]] = []
        """The futures of `_submitted`."""
        self._is_working = False
        """Whether the thread runs a batch; False only when its results have reached the event loop."""
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._ended_future: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Starts the thread and waits until it is connected.

        Raises:
            StoreUnavailable: the file cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        self._ended_future = self._loop.create_future()
        self._thread.start()
        await self.submit(lambda connection: None)

    def submit(self, job: Callable[[sqlite3.Connection], Result]) -> asyncio.Future[Result]:
        """Queues a job. The future gets its result; for a write, once it is durable.

        Raises:
            StoreUnavailable: the store is not open.
        """
        if self._loop is None or self._is_closing:
            raise StoreUnavailable("The store is not open.")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._futures.append(future)
        self._submitted.append(job)
        if len(self._submitted) == 1 and not self._is_working:
            # Dispatched after this iteration of the loop, so that other jobs of the iteration join the batch.
            self._loop.call_soon(self._dispatch_batch)
        return future

    def _dispatch_batch(self) -> None:
        # While closing, batches do not wait for each other.
        if self._submitted and (not self._is_working or self._is_closing):
            self._is_working = True
            self._batches.put((self._futures[:MAX_BATCH_JOBS], self._submitted[:MAX_BATCH_JOBS]))
            del self._futures[:MAX_BATCH_JOBS], self._submitted[:MAX_BATCH_JOBS]

    async def stop(self) -> None:
        """Finishes queued jobs, then closes the connection."""
        if self._ended_future is None:
            return
        self._is_closing = True
        while self._submitted:
            self._dispatch_batch()
        self._batches.put(None)
        # A cancelled caller must not cancel the future that the thread resolves.
        await asyncio.shield(self._ended_future)

    def _run_thread(self) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the connection
            self._reject_first_batch(error)
            return
        while (batch := self._batches.get()) is not None:
            futures, jobs = batch
            self._call_in_loop(self._resolve_futures, futures, self._run_batch(connection, jobs))
        connection.close()
        self._report_end()

    def _reject_first_batch(self, error: Exception) -> None:
        """Gives the connection's error to the first jobs, which wait for the connection."""
        futures, _ = self._batches.get() or ([], [])
        self._call_in_loop(self._resolve_futures, futures, [(None, error)] * len(futures))
        self._report_end()

    def _resolve_futures(self, futures: list[asyncio.Future[Any]], outcomes: list[Outcome]) -> None:
        # The next batch goes to the thread before results are set: the thread works while the loop runs the waiters.
        self._is_working = False
        if self._submitted:
            self._dispatch_batch()
        for future, (value, error) in zip(futures, outcomes, strict=True):
            # Cancelled by its waiter; the job has run all the same.
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(translate_driver_error(error))
        # Last: whatever it raises, nobody waits for a result.
        if self._on_batch_end is not None:
            self._on_batch_end()

    def _report_end(self) -> None:
        self._call_in_loop(self._resolve_ended_future)

    def _resolve_ended_future(self) -> None:
        self._is_closing = True
        if self._ended_future is not None and not self._ended_future.done():
            self._ended_future.set_result(None)

    def _call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)
        # The loop is closed if the process ends without closing the store. Then no task waits for an outcome.
        except RuntimeError:
            pass
