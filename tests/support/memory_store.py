"""A store in memory for tests: open from the start, with the clock that the test passes in."""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from app.store.sqlite.memory_store import SqliteMemoryStore, open_memory_connection
from app.store.sqlite.threads import DatabaseThread, run_batch_in_transaction, translate_driver_error

Result = TypeVar("Result")


class MemoryStore(SqliteMemoryStore):
    """The store of `memory://`, but its operations run in the event loop, when they are called.

    So a test may create it anywhere, read it without waiting, keep it beyond the end of a gateway or of an event loop,
    and run it in virtual time. It needs neither `open` nor `close`.
    """

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        super().__init__(clock=clock)
        self._connection = open_memory_connection(self._path, self._options)
        weakref.finalize(self, self._connection.close)
        thread = _NoThread(self._connection)
        self._writer_thread = self._lookup_thread = self._range_thread = self._checkpoint_thread = thread

    async def open(self) -> None:
        """Does nothing: the store is open."""

    async def close(self) -> None:
        """Does nothing: the store keeps its data, for the next gateway or for the test."""

    def execute_now(self, sql: str, *arguments: Any) -> list[Any]:
        """Runs a statement of the test's own, and returns its rows."""
        return self._connection.execute(sql, arguments).fetchall()


class _NoThread(DatabaseThread):
    """Runs each job at once, in a transaction of its own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__("none", lambda: connection, run_batch_in_transaction)
        self._connection = connection

    def submit(self, job: Callable[[sqlite3.Connection], Result]) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        ((value, error),) = run_batch_in_transaction(self._connection, [job])
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(translate_driver_error(error))
        return future
