"""Conversations in an SQLite file: the embedded default. Several processes may open the same file.

Write-ahead log, so readers never wait for the writer. One writer thread with group commit; one reader thread for
look-ups and one for ranges, so that a long log being read delays no look-up.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from app.conversation.identity import root_of_conversation
from app.conversation.messages import Anchor, Chunk, ClientVersion, Conversation, LogMessage
from app.errors import StoreUnavailable
from app.store.contract import Append, Found, FoundAnywhere, Lease, Match, StoreInfo
from app.store.lineage import expected_count, placed, ranges_within, stretches, stretches_of
from app.store.search.index_terms import keys_of_messages, keys_of_terms, portions
from app.store.sql import chunk_transactions, erasure_transactions
from app.store.sql.schema import SCHEMA_VERSION
from app.store.sql.side_tables import Desk
from app.store.sql.transactions import SQLITE, Rows, Script
from app.store.sqlite import reads, search_index, writes
from app.store.sqlite.appends import Appending, run_together
from app.store.sqlite.erased_remains import ERASURE_BYTES, REDACTION_BYTES, holds_remains, rebuild, truncate_log
from app.store.sqlite.threads import (
    Lane,
    SqliteOptions,
    commit_together,
    open_file,
    read_each,
    unavailable,
)

Result = TypeVar("Result")


class SqliteStore(Desk):
    """`Store` on one SQLite file, whose schema must be up to date when it is opened."""

    searches_all = True

    def __init__(self, path: Path, *, clock: Callable[[], datetime], options: SqliteOptions | None = None) -> None:
        super().__init__(SQLITE, clock=clock)
        self._path = path
        self._options = options or SqliteOptions()
        connect = partial(open_file, path, self._options)
        self._writer = Lane("store-writer", connect, partial(commit_together, run_all=run_together))
        self._lookups = Lane("store-lookups", connect, read_each)
        self._ranges = Lane("store-ranges", connect, read_each)

    async def open(self) -> None:
        await self._writer.start()
        await asyncio.gather(self._lookups.start(), self._ranges.start())
        version = (await self.check()).schema_version
        if version != SCHEMA_VERSION:
            await self.close()
            raise StoreUnavailable(
                f"The schema of {str(self._path)!r} is {version!r}, expected {SCHEMA_VERSION!r}.",
                hint="Run `concertina migrate`.",
            )

    async def close(self) -> None:
        await asyncio.gather(self._writer.stop(), self._lookups.stop(), self._ranges.stop())

    async def check(self) -> StoreInfo:
        version = await self._lookups.run(_schema_version)
        return StoreInfo("sqlite", version, {"path": str(self._path), "synchronous": self._options.synchronous})

    async def find(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        within: str | None = None,
    ) -> list[Match]:
        return await self._lookups.run(
            lambda connection: reads.find(connection, tenant, root, links, skeletons, within)
        )

    async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        return await self._lookups.run(lambda connection: reads.get(connection, tenant, conversation_id, root))

    async def look_up(self, conversation_id: str) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        return await self._lookups.run(lambda connection: reads.look_up(connection, conversation_id, root))

    async def point(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        await self._writer.run(partial(writes.point, tenant=tenant, external_id=external_id, conversation=conversation))

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return await self.read_ranges(conversation, ((from_seq, to_seq),))

    async def read_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        found = await self._read(conversation, ranges)
        if len(found) == sum([expected_count(conversation, *one) for one in ranges]):
            return found
        # An ancestor was erased meanwhile and its messages have moved: the stored lineage says where to.
        fresh = await self.get(tenant=conversation.tenant, conversation_id=conversation.id)
        return found if fresh is None else await self._read(fresh, ranges_within(conversation, ranges))

    async def _read(self, conversation: Conversation, ranges: Iterable[tuple[int, int]]) -> list[LogMessage]:
        wanted = stretches_of(conversation.path, ranges)
        if not wanted:
            return []
        return await self._ranges.run(lambda connection: reads.read(connection, conversation.root, wanted))

    async def versions(self, conversation: Conversation, *, until_seq: int | None = None) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        return await self._ranges.run(
            lambda connection: reads.versions(connection, conversation.root, conversation.path, until)
        )

    async def keep_anchors(self, anchors: Sequence[Anchor]) -> None:
        now = self._clock()
        await self._writer.run(lambda connection: writes.keep_anchors(connection, anchors, now))

    async def find_anchors(self, digests: Sequence[bytes]) -> list[Anchor]:
        return await self._lookups.run(lambda connection: reads.find_anchors(connection, digests))

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        kept = placed(conversation.path, entries)
        keys = await asyncio.to_thread(keys_of_messages, [entry for _, entry in kept])
        for part in portions(keys):
            job = partial(search_index.index, conversation=conversation, kept=kept[part], keys=keys[part])
            await self._writer.run(job)

    async def forget_index(self) -> None:
        await self._writer.run(search_index.forget_all)

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        wanted = stretches(conversation.path, max(from_seq, 0), before_seq)
        if not wanted or not terms:
            return []
        keys, count = keys_of_terms(terms), expected_count(conversation, from_seq, before_seq)
        return await self._ranges.run(
            lambda connection: search_index.search(connection, conversation.root, wanted, keys, count, limit)
        )

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        keys = keys_of_terms(terms)
        return await self._ranges.run(lambda connection: search_index.search_all(connection, tenant, keys, limit))

    def append(self, write: Append) -> asyncio.Future[None]:
        return self._writer.run(Appending(write, self._clock()))

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        root = root_of_conversation(conversation_id)
        texts = await self._writer.run(lambda connection: writes.delete(connection, tenant, conversation_id, root))
        if texts is None:
            return False
        await self._leave_nothing(texts, ERASURE_BYTES)
        return True

    async def describe(self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        return await self._writer.run(
            lambda connection: writes.describe(connection, tenant, conversation_id, root, metadata)
        )

    async def mark(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        await self._run(lambda: erasure_transactions.mark(SQLITE, conversation, marks))

    async def redact(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Chunk]:
        redacted = await self._run(lambda: erasure_transactions.redact(SQLITE, writes.WORDS, conversation, entries))
        await self._leave_nothing(redacted.texts, REDACTION_BYTES)
        return redacted.chunks

    async def rewrite(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        chunks: Sequence[Chunk] = (),
        versions: Sequence[ClientVersion] = (),
    ) -> None:
        await self._run(lambda: erasure_transactions.rewrite(SQLITE, conversation, entries, chunks, versions))

    async def revise(self, *, tenant: str, root: str, chunk: Chunk) -> None:
        await self._run(lambda: chunk_transactions.revise(SQLITE, tenant, root, chunk))

    async def revisions(self, *, tenant: str, root: str, chunk_id: str) -> list[Chunk]:
        return await self._run(lambda: chunk_transactions.revisions(SQLITE, tenant, root, chunk_id))

    async def delete_chunk(self, *, tenant: str, root: str, chunk_id: str) -> bool:
        was_there = await self._run(lambda: chunk_transactions.delete(SQLITE, tenant, root, chunk_id))
        if was_there:
            await self._forget_log()
        return was_there

    async def purge_chunks(self, *, made_before: datetime) -> int:
        found = await chunk_transactions.purge(SQLITE, self._look, self._delete_strays, made_before)
        if found:
            await self._forget_log()
        return found

    def _look(self, sql: str, arguments: tuple[Any, ...]) -> asyncio.Future[Rows]:
        return self._ranges.run(lambda connection: connection.execute(sql, arguments).fetchall())

    def _delete_strays(self, places: Sequence[chunk_transactions.Place]) -> asyncio.Future[int]:
        return self._run(lambda: chunk_transactions.delete_strays(SQLITE, places))

    async def chunks(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        after: bytes | None = None,
        texts: bool = True,
    ) -> list[Chunk]:
        return await self._ranges.run(
            lambda connection: reads.chunks(connection, tenant, root, path, links, after, texts=texts)
        )

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        now = self._clock()
        await self._writer.run(lambda connection: writes.add_chunk(connection, tenant, root, chunk, fence, now))

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        now = self._clock()
        return await self._writer.run(lambda connection: writes.claim(connection, root, key, holder, seconds, now))

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        now = self._clock()
        return await self._writer.run(lambda connection: writes.renew(connection, leases, seconds, now))

    async def release_lease(self, lease: Lease) -> None:
        await self._writer.run(lambda connection: writes.release(connection, lease))

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        return await self._lookups.run(reads.model_facts)

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        now = self._clock()
        await self._writer.run(lambda connection: writes.learn(connection, model, facts, now))

    async def _ask(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._lookups.run(lambda connection: connection.execute(sql, arguments).fetchall())

    async def _tell(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._writer.run(lambda connection: connection.execute(sql, arguments).fetchall())

    def _run(self, script: Callable[[], Script[Result]]) -> asyncio.Future[Result]:
        """Run a script in the writer's transaction; it is made there, since a failed batch is run again."""
        return self._writer.run(lambda connection: writes.run(connection, script()))

    async def scrub(self) -> None:
        try:
            await asyncio.to_thread(rebuild, self._path, self._options)
        except sqlite3.Error as error:
            raise unavailable(error) from error
        await self._forget_log()

    async def _leave_nothing(self, texts: Sequence[str], budget_bytes: int) -> None:
        """Make sure that erased texts are nowhere in the files, as far as that can be done in a short time."""
        await self._forget_log()
        search = partial(holds_remains, self._path, self._options, texts, budget_bytes=budget_bytes)
        if await asyncio.to_thread(search):
            await self.scrub()

    async def _forget_log(self) -> None:
        """Empty the write-ahead log, in which erased text may stand."""
        await asyncio.to_thread(truncate_log, self._path, self._options)


def _schema_version(connection: sqlite3.Connection) -> str:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
        return "none"
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return "none" if row is None else str(row[0])
