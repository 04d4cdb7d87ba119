"""Reads a whole database row by row for verification, without changing it. All reads see one snapshot, however long
they take.

Rows come decoded, in the order of their keys. A row that refers to a missing row comes as `DanglingRow`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import asyncpg

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.errors import StoreUnavailable
from app.store.database_url import DatabaseLocation, parse_database_url
from app.store.sql.dialects import POSTGRES, SQLITE, SqlDialect
from app.store.sql.required_schema_version import SCHEMA_VERSION
from app.store.sql.rows import (
    CONVERSATION_COLUMNS,
    MESSAGE_COLUMNS,
    SUMMARY_COLUMNS,
    decode_conversation,
    decode_log_message,
    decode_summary,
)
from tests.faults.dangling_rows import COUNT_STATEMENTS, DanglingRow, build_dangling_queries

BATCH_ROWS: Final = 200
"""Rows that are in memory at a time."""

_CONVERSATIONS: Final = f"SELECT {', '.join(CONVERSATION_COLUMNS)} FROM conversations ORDER BY root, id"
_CONVERSATION: Final = f"SELECT {', '.join(CONVERSATION_COLUMNS)} FROM conversations WHERE root = :root AND id = :id"
_OWN_MESSAGES: Final = f"""
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages
    WHERE root = :root AND conversation_id = :id ORDER BY root, conversation_id, seq"""
_MESSAGE: Final = f"""
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages WHERE root = :root AND conversation_id = :id AND seq = :seq"""
_SUMMARIES: Final = f"SELECT tenant, root, is_fold, {', '.join(SUMMARY_COLUMNS)} FROM chunks ORDER BY root, id"
_HAS_SUMMARY: Final = "SELECT 1 FROM chunks WHERE root = :root AND id = :id AND tenant = :tenant"
_LINK_LOCATIONS: Final = "SELECT conversation_id, seq FROM messages WHERE root = :root AND link = :link"


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary with the columns of its row that `Summary` does not have."""

    tenant: str
    root: str
    is_fold: bool
    summary: Summary


class SnapshotConnection(Protocol):
    """A read-only connection inside one transaction."""

    dialect: SqlDialect

    def stream_rows(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        """Yields the rows of a statement; at most `BATCH_ROWS` are in memory."""

    async def fetch_rows(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Returns all rows of a statement that finds few."""


class DatabaseSnapshot:
    """Reads the contents of a database through one snapshot."""

    def __init__(self, snapshot: SnapshotConnection) -> None:
        self._snapshot = snapshot
        self._dialect = snapshot.dialect

    async def count_rows(self) -> dict[str, int]:
        """Returns the number of rows of each table, by table name."""
        return {name: int((await self._snapshot.fetch_rows(sql, ()))[0][0]) for name, sql in COUNT_STATEMENTS.items()}

    async def stream_conversations(self) -> AsyncIterator[Conversation]:
        async for row in self._snapshot.stream_rows(_CONVERSATIONS, ()):
            yield decode_conversation(row)

    async def find_conversation(self, root: str, conversation_id: str) -> Conversation | None:
        found = await self._snapshot.fetch_rows(
            *self._dialect.build_statement(_CONVERSATION, root=root, id=conversation_id)
        )
        return decode_conversation(found[0]) if found else None

    async def stream_own_messages(self, conversation: Conversation) -> AsyncIterator[LogMessage]:
        """Yields the messages in a conversation's own rows, by seq."""
        async for row in self._snapshot.stream_rows(
            *self._dialect.build_statement(_OWN_MESSAGES, root=conversation.root, id=conversation.id)
        ):
            yield decode_log_message(row)

    async def read_message(self, root: str, conversation_id: str, seq: int) -> LogMessage | None:
        found = await self._snapshot.fetch_rows(
            *self._dialect.build_statement(_MESSAGE, root=root, id=conversation_id, seq=seq)
        )
        return decode_log_message(found[0]) if found else None

    async def stream_summaries(self) -> AsyncIterator[SummaryRow]:
        async for tenant, root, is_fold, *row in self._snapshot.stream_rows(_SUMMARIES, ()):
            yield SummaryRow(tenant, root, bool(is_fold), decode_summary(row))

    async def has_summary(self, summary_row: SummaryRow, summary_id: str) -> bool:
        """Whether the same tenant and family have a summary with this id."""
        statement = self._dialect.build_statement(
            _HAS_SUMMARY, root=summary_row.root, id=summary_id, tenant=summary_row.tenant
        )
        return bool(await self._snapshot.fetch_rows(*statement))

    async def find_link_locations(self, root: str, link: bytes) -> list[tuple[str, int]]:
        """Returns where a link is stored: conversation id and seq of each row."""
        return [
            (row[0], row[1])
            for row in await self._snapshot.fetch_rows(
                *self._dialect.build_statement(_LINK_LOCATIONS, root=root, link=link)
            )
        ]

    async def stream_dangling_rows(self, now: datetime) -> AsyncIterator[DanglingRow]:
        """Yields every row that refers to a missing row."""
        for query in build_dangling_queries(self._dialect, now):
            async for location, detail in self._snapshot.stream_rows(*query.build_statement(self._dialect)):
                yield DanglingRow(
                    query.kind, str(location), query.description_template.format(detail), is_fault=query.is_fault
                )


@asynccontextmanager
async def open_database_snapshot(url: str) -> AsyncIterator[DatabaseSnapshot]:
    """Opens a scan of the database that a URL names.

    Raises:
        StoreUnavailable: it cannot be read, or its schema is another version's.
        ValueError: the URL is none of the accepted forms.
    """
    location = parse_database_url(url)
    opened = _open_sqlite_snapshot(location) if location.backend == "sqlite" else _open_postgres_snapshot(location)
    try:
        async with opened as rows:
            await _require_current_schema(rows)
            yield DatabaseSnapshot(rows)
    # Covers the caller's block, too: its reads run after the yield, and a driver error there means the same.
    except (sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise StoreUnavailable(f"The database cannot be read: {str(error) or type(error).__name__}.") from error


async def _require_current_schema(snapshot: SnapshotConnection) -> None:
    found = await snapshot.fetch_rows("SELECT version_num FROM alembic_version", ())
    version = found[0][0] if found else "none"
    if version != SCHEMA_VERSION:
        raise StoreUnavailable(
            f"The database's schema is {version!r}, expected {SCHEMA_VERSION!r}.", hint="Run `concertina migrate`."
        )


class _SqliteSnapshot:
    """A transaction on a SQLite file that sees the file as it was when the transaction began."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def stream_rows(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        cursor = await asyncio.to_thread(self._connection.execute, sql, arguments)
        while batch := await asyncio.to_thread(cursor.fetchmany, BATCH_ROWS):
            for row in batch:
                yield row

    async def fetch_rows(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        # Look-ups by key are so short that handing them to a thread takes several times as long.
        return self._connection.execute(sql, arguments).fetchall()


@asynccontextmanager
async def _open_sqlite_snapshot(location: DatabaseLocation) -> AsyncIterator[SnapshotConnection]:
    uri = f"{location.path.absolute().as_uri()}?mode=ro"
    # The jobs of `asyncio.to_thread` run in changing threads, one at a time: hence check_same_thread=False.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")
        yield _SqliteSnapshot(connection)
    finally:
        connection.close()


class _PostgresSnapshot:
    """A transaction on PostgreSQL that sees one snapshot (repeatable read)."""

    dialect = POSTGRES

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def stream_rows(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        async for row in self._connection.cursor(sql, *arguments, prefetch=BATCH_ROWS):
            yield tuple(row)

    async def fetch_rows(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return [tuple(row) for row in await self._connection.fetch(sql, *arguments)]


@asynccontextmanager
async def _open_postgres_snapshot(location: DatabaseLocation) -> AsyncIterator[SnapshotConnection]:
    connection = await asyncpg.connect(location.dsn)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield _PostgresSnapshot(connection)
    finally:
        await connection.close()
