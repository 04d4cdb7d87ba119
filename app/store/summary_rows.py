"""Reads the summaries of all tenants from a database, row by row and without changing it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from app.conversation.conversation_types import Summary
from app.errors import StoreUnavailable
from app.store.database_url import DatabaseLocation, parse_database_url
from app.store.sql.rows import SUMMARY_COLUMNS, decode_summary

BATCH_ROWS: Final = 200
"""Rows that are in memory at a time."""
_SUMMARIES: Final = f"SELECT tenant, root, {', '.join(SUMMARY_COLUMNS)} FROM chunks ORDER BY root, id"  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary, its texts as they are stored, with the columns of its row that `Summary` does not have."""

    tenant: str
    root: str
    summary: Summary


@asynccontextmanager
async def open_summary_rows(url: str) -> AsyncIterator[AsyncIterator[SummaryRow]]:
    """Opens the summaries of a SQLite file or of PostgreSQL. All come from one snapshot, however long reading takes.

    Raises:
        StoreUnavailable: the database cannot be read.
    """
    location = parse_database_url(url)
    rows = _stream_sqlite_rows(location) if location.backend == "sqlite" else _stream_postgres_rows(location)
    try:
        async with aclosing(rows):
            yield (SummaryRow(tenant, root, decode_summary(row)) async for tenant, root, *row in rows)
    # Covers the caller's block, too: its reads run after the yield, and a driver error there means the same.
    except (sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise StoreUnavailable(f"The database cannot be read: {str(error) or type(error).__name__}.") from error


async def _stream_sqlite_rows(location: DatabaseLocation) -> AsyncGenerator[Sequence[Any]]:
    uri = f"{location.path.absolute().as_uri()}?mode=ro"
    # The jobs of `asyncio.to_thread` run in changing threads, one at a time: hence check_same_thread=False.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        cursor = await asyncio.to_thread(connection.execute, _SUMMARIES)
        while batch := await asyncio.to_thread(cursor.fetchmany, BATCH_ROWS):
            for row in batch:
                yield row
    finally:
        connection.close()


async def _stream_postgres_rows(location: DatabaseLocation) -> AsyncGenerator[Sequence[Any]]:
    connection = await asyncpg.connect(location.dsn)
    try:
        async with connection.transaction(readonly=True):
            async for row in connection.cursor(_SUMMARIES, prefetch=BATCH_ROWS):
                yield tuple(row)
    finally:
        await connection.close()
