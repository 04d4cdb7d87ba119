"""Read a whole database row by row, changing nothing: one snapshot, however long it takes and whoever writes meanwhile.

Rows come as nouns, in the order of their keys; what names something that is not there comes as `Dangling`.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import asyncpg

from app.conversation.messages import Chunk, Conversation, LogMessage
from app.errors import StoreUnavailable
from app.store.location import Location, location_of
from app.store.sql.dangling_rows import COUNTS, Dangling, queries
from app.store.sql.rows import (
    CHUNK_COLUMNS,
    CONVERSATION_COLUMNS,
    MESSAGE_COLUMNS,
    chunk_of,
    conversation_of,
    log_message_of,
)
from app.store.sql.schema import SCHEMA_VERSION
from app.store.sql.transactions import POSTGRES, SQLITE, Dialect

BATCH: Final = 200
"""Rows that are held at a time."""

_CONVERSATIONS: Final = f"SELECT {', '.join(CONVERSATION_COLUMNS)} FROM conversations ORDER BY root, id"
_CONVERSATION: Final = f"SELECT {', '.join(CONVERSATION_COLUMNS)} FROM conversations WHERE root = :root AND id = :id"
_OWN: Final = f"""
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages
    WHERE root = :root AND conversation_id = :id ORDER BY root, conversation_id, seq"""
_MESSAGE: Final = f"""
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages WHERE root = :root AND conversation_id = :id AND seq = :seq"""
_CHUNKS: Final = f"SELECT tenant, root, is_fold, {', '.join(CHUNK_COLUMNS)} FROM chunks ORDER BY root, id"
_HAS_CHUNK: Final = "SELECT 1 FROM chunks WHERE root = :root AND id = :id AND tenant = :tenant"
_KEEPERS: Final = "SELECT conversation_id, seq FROM messages WHERE root = :root AND link = :link"


@dataclass(frozen=True, slots=True)
class KeptChunk:
    """A chunk with what its row says beside it."""

    tenant: str
    root: str
    is_fold: bool
    chunk: Chunk


class Rows(Protocol):
    """A connection that only reads, within one transaction."""

    dialect: Dialect

    def stream(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        """Rows as they come; never more than `BATCH` are held."""

    async def all(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """All rows of a statement that finds few."""


class Audit:
    """What a database holds."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._dialect = rows.dialect

    async def counts(self) -> dict[str, int]:
        """How many rows the tables have."""
        return {name: int((await self._rows.all(sql, ()))[0][0]) for name, sql in COUNTS.items()}

    async def conversations(self) -> AsyncIterator[Conversation]:
        async for row in self._rows.stream(_CONVERSATIONS, ()):
            yield conversation_of(row)

    async def conversation(self, root: str, conversation_id: str) -> Conversation | None:
        found = await self._rows.all(*self._dialect.say(_CONVERSATION, root=root, id=conversation_id))
        return conversation_of(found[0]) if found else None

    async def own_messages(self, conversation: Conversation) -> AsyncIterator[LogMessage]:
        """Messages in a conversation's own rows, by seq."""
        async for row in self._rows.stream(*self._dialect.say(_OWN, root=conversation.root, id=conversation.id)):
            yield log_message_of(row)

    async def message(self, root: str, conversation_id: str, seq: int) -> LogMessage | None:
        found = await self._rows.all(*self._dialect.say(_MESSAGE, root=root, id=conversation_id, seq=seq))
        return log_message_of(found[0]) if found else None

    async def chunks(self) -> AsyncIterator[KeptChunk]:
        async for tenant, root, is_fold, *row in self._rows.stream(_CHUNKS, ()):
            yield KeptChunk(tenant, root, bool(is_fold), chunk_of(row))

    async def has_chunk(self, kept: KeptChunk, chunk_id: str) -> bool:
        """Whether the tenant has a chunk of the same family with this id."""
        asked = self._dialect.say(_HAS_CHUNK, root=kept.root, id=chunk_id, tenant=kept.tenant)
        return bool(await self._rows.all(*asked))

    async def keepers(self, root: str, link: bytes) -> list[tuple[str, int]]:
        """Where a link stands: ids of conversations, and places in their own rows."""
        return [(row[0], row[1]) for row in await self._rows.all(*self._dialect.say(_KEEPERS, root=root, link=link))]

    async def dangling(self, now: datetime) -> AsyncIterator[Dangling]:
        """Whatever names something that is not there."""
        for query in queries(self._dialect, now):
            async for where, told in self._rows.stream(*query.say(self._dialect)):
                yield Dangling(query.kind, str(where), query.told.format(told), is_fault=query.is_fault)


@asynccontextmanager
async def opened_audit(url: str) -> AsyncIterator[Audit]:
    """
    Raises:
        StoreUnavailable: it cannot be read, or its schema is another version's.
        ValueError: the URL is none of the accepted forms, or names a store that keeps nothing.
    """
    location = location_of(url)
    if location.backend == "memory":
        raise ValueError("A store in memory is gone with its process: there is nothing to verify.")
    opened = _sqlite(location) if location.backend == "sqlite" else _postgres(location)
    try:
        async with opened as rows:
            await _check_schema(rows)
            yield Audit(rows)
    except (sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise StoreUnavailable(f"The database cannot be read: {str(error) or type(error).__name__}.") from error


async def _check_schema(rows: Rows) -> None:
    found = await rows.all("SELECT version_num FROM alembic_version", ())
    version = found[0][0] if found else "none"
    if version != SCHEMA_VERSION:
        raise StoreUnavailable(
            f"The database's schema is {version!r}, expected {SCHEMA_VERSION!r}.", hint="Run `concertina migrate`."
        )


class _SqliteRows:
    """A file in a thread, as it was when reading began."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def stream(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        cursor = await asyncio.to_thread(self._connection.execute, sql, arguments)
        while batch := await asyncio.to_thread(cursor.fetchmany, BATCH):
            for row in batch:
                yield row

    async def all(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        # Point look-ups by key: handing them to a thread would take several times as long.
        return self._connection.execute(sql, arguments).fetchall()


@asynccontextmanager
async def _sqlite(location: Location) -> AsyncIterator[Rows]:
    uri = f"{location.path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")
        yield _SqliteRows(connection)
    finally:
        connection.close()


class _PostgresRows:
    """A transaction that sees one snapshot."""

    dialect = POSTGRES

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def stream(self, sql: str, arguments: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
        async for row in self._connection.cursor(sql, *arguments, prefetch=BATCH):
            yield tuple(row)

    async def all(self, sql: str, arguments: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return [tuple(row) for row in await self._connection.fetch(sql, *arguments)]


@asynccontextmanager
async def _postgres(location: Location) -> AsyncIterator[Rows]:
    connection = await asyncpg.connect(location.dsn)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield _PostgresRows(connection)
    finally:
        await connection.close()
