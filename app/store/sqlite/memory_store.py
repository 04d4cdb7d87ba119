"""The store in memory: SQLite without a file, for tests and temporary use. Nothing of it is written to disk, and
nothing survives the process.

It has one connection and one thread, for reads and writes. Several connections could share the memory, but then SQLite
has no write-ahead log: a read during a write fails with "table is locked".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from app.store.contract.store import StoreInfo
from app.store.sqlite.backend import SqliteStore
from app.store.sqlite.threads import SqliteOptions, open_sqlite_connection
from migrations.on_sqlite import create_tables


class SqliteMemoryStore(SqliteStore):
    """`Store` in the memory of this process. Opening it creates the tables; closing it deletes all data."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        super().__init__(Path(":memory:"), clock=clock, connect=open_memory_connection)
        self._lookup_thread = self._range_thread = self._checkpoint_thread = self._writer_thread

    async def open(self) -> None:
        await self._writer_thread.start()

    async def check(self) -> StoreInfo:
        return StoreInfo("memory", (await super().check()).schema_version, {})

    async def scrub_deleted_data(self) -> None:
        """Does nothing: `PRAGMA secure_delete` has overwritten deleted data, and there is no file."""

    async def _truncate_write_ahead_log(self) -> None:
        """Does nothing: there is no write-ahead log."""

    def _schedule_checkpoint(self) -> None:
        """Does nothing: there is no write-ahead log."""


def open_memory_connection(path: Path, options: SqliteOptions) -> sqlite3.Connection:
    """Creates a database in memory with all tables, and returns its only connection."""
    connection = open_sqlite_connection(path, options)
    connection.execute("BEGIN")
    create_tables(connection)
    connection.execute("COMMIT")
    return connection
