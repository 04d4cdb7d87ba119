"""The store in a SQLite file: the embedded default. Several processes may open the same file.

The file has a write-ahead log, so readers never wait for the writer. One writer thread with group commit; one reader
thread for look-ups and one for ranges, so that reading a long log delays no look-up; one thread for checkpoints, so
that commits do not wait while the write-ahead log is copied into the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from app.conversation.conversation_types import (
    AnswerAnchor,
    AnswerProof,
    Conversation,
    IssuedAnswer,
    LogMessage,
    Summary,
)
from app.store.contract.conversations import LinkMatch, LogAppend, PendingAppend
from app.store.contract.leases import Lease
from app.store.contract.store import StoreInfo
from app.store.lineage import LogSegment
from app.store.search.term_ranking import hash_conversation_scope, hash_tenant_scope
from app.store.sql.backend import SqlStore
from app.store.sql.dialects import SQLITE, Rows, Statement, TransactionSteps
from app.store.sqlite import jobs, term_index
from app.store.sqlite.threads import (
    DatabaseThread,
    SqliteOptions,
    open_sqlite_connection,
    run_batch_in_transaction,
    run_read_jobs,
    translate_driver_error,
)

MAX_VACUUM_BYTES: Final = 256 << 20
"""The largest file that is rewritten after a redaction: `VACUUM` of this size takes about 2 s, and writers wait.
`Store.scrub_deleted_data` rewrites a larger one.
"""
Result = TypeVar("Result")


class SqliteStore(SqlStore):
    """`Store` on one SQLite file. The file's schema must be up to date when the store opens.

    Args:
        connect: opens the connection of one of the store's threads.
        max_vacuum_bytes: as `MAX_VACUUM_BYTES`.
    """

    search_index_cleanup = term_index.SEARCH_INDEX_CLEANUP

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime],
        options: SqliteOptions | None = None,
        connect: Callable[[Path, SqliteOptions], sqlite3.Connection] = open_sqlite_connection,
        max_vacuum_bytes: int = MAX_VACUUM_BYTES,
    ) -> None:
        super().__init__(SQLITE, clock=clock)
        self._path = path
        self._options = options or SqliteOptions()
        self._max_vacuum_bytes = max_vacuum_bytes
        open_file = partial(connect, path, self._options)
        self._writer_thread = DatabaseThread(
            "store-writer",
            open_file,
            run_batch_in_transaction,
            self._schedule_checkpoint,
        )
        self._lookup_thread = DatabaseThread("store-lookups", open_file, run_read_jobs)
        self._range_thread = DatabaseThread("store-ranges", open_file, run_read_jobs)
        self._checkpoint_thread = DatabaseThread("store-checkpoints", open_file, run_read_jobs)
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        """Set from a commit until the next checkpoint has ended."""

    async def open(self) -> None:
        # First: the writer's first batch schedules a checkpoint.
        await self._checkpoint_thread.start()
        await asyncio.gather(self._writer_thread.start(), self._lookup_thread.start(), self._range_thread.start())
        await self._require_current_schema(f"The schema of {str(self._path)!r}")

    async def close(self) -> None:
        await asyncio.gather(self._writer_thread.stop(), self._lookup_thread.stop(), self._range_thread.stop())
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        await self._checkpoint_thread.stop()

    async def check(self) -> StoreInfo:
        version = await self._lookup_thread.submit(_read_schema_version)
        return StoreInfo("sqlite", version, {"path": str(self._path), "synchronous": self._options.synchronous})

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        named_conversation_id: str | None = None,
        with_unanswered: bool = False,
    ) -> list[LinkMatch]:
        return await self._lookup_thread.submit(
            lambda connection: jobs.find_link_matches(
                connection, tenant, root, links, named_conversation_id, with_unanswered
            )
        )

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        await self._writer_thread.submit(partial(jobs.add_anchors, anchors=anchors, now=self._clock()))

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        return await self._lookup_thread.submit(lambda connection: jobs.find_anchors(connection, digests))

    async def issue_answer(self, issued: IssuedAnswer) -> None:
        await self._writer_thread.submit(lambda connection: jobs.issue_answer(connection, issued))

    async def find_proofs(self, *, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
        return await self._lookup_thread.submit(
            lambda connection: jobs.find_proofs(connection, tenant, list(dict.fromkeys(fingerprints)))
        )

    def _index_batch(
        self,
        conversation: Conversation,
        located_messages: Sequence[tuple[str, LogMessage]],
        keys: Sequence[Sequence[int]],
    ) -> asyncio.Future[None]:
        return self._writer_thread.submit(
            lambda connection: term_index.index_messages(connection, conversation, located_messages, keys)
        )

    async def clear_search_index(self) -> None:
        await self._writer_thread.submit(term_index.clear_search_index)

    def _search_segments(
        self, root: str, segments: Sequence[LogSegment], keys: Sequence[int], message_count: int, limit: int
    ) -> Awaitable[Rows]:
        stretches = [
            (one.conversation_id, hash_conversation_scope(root, one.conversation_id), one.from_seq, one.to_seq)
            for one in segments
        ]
        lists = (orjson.dumps(stretches).decode(), orjson.dumps(keys).decode())
        return self._execute_long_read(term_index.SEARCH_LOG, (root, *lists, message_count, limit))

    def _search_tenant_index(self, tenant: str, keys: Sequence[int], limit: int) -> Awaitable[Rows]:
        arguments = (hash_tenant_scope(tenant), tenant, orjson.dumps(keys).decode(), limit)
        return self._execute_long_read(term_index.SEARCH_TENANT, arguments)

    # Not async: the job is queued at the call, so that appends keep the order of the calls.
    def append(self, write: LogAppend) -> PendingAppend:
        return self._writer_thread.submit(partial(jobs.write_log_append, write=write, now=self._clock()))

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        was_there = await super().erase_conversation(tenant=tenant, conversation_id=conversation_id)
        # No VACUUM: retention and failed first turns erase thousands of conversations in a row.
        if was_there:
            await self._truncate_write_ahead_log()
        return was_there

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        deleted_summaries = await super().redact_messages(conversation, entries)
        await self._truncate_write_ahead_log()
        # A database in memory has no file that keeps what was deleted.
        if self._path.exists() and self._path.stat().st_size <= self._max_vacuum_bytes:
            await self.scrub_deleted_data()
        return deleted_summaries

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        was_there = await super().delete_summary(tenant=tenant, root=root, summary_id=summary_id)
        if was_there:
            await self._truncate_write_ahead_log()
        return was_there

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        found = await super().purge_stray_summaries(created_before=created_before)
        if found:
            await self._truncate_write_ahead_log()
        return found

    async def find_summaries(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        from_link: bytes | None = None,
        with_texts: bool = True,
    ) -> list[Summary]:
        return await self._range_thread.submit(
            lambda connection: jobs.find_summaries(
                connection, tenant, root, path, links, from_link, with_texts=with_texts
            )
        )

    def _build_fence_query(self, fence: Lease) -> Statement:
        return jobs.build_fence_query(fence, self._clock())

    async def _execute_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._lookup_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    async def _execute_long_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._range_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    async def _execute_write(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._writer_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    def _run_transaction(
        self, make_steps: Callable[[], TransactionSteps[Result]], *, exclusive_root: str | None = None
    ) -> asyncio.Future[Result]:
        # There is one writer, so each transaction is exclusive. The generator is made inside the job: when a failed
        # batch runs again, it needs a new one.
        return self._writer_thread.submit(lambda connection: jobs.run_transaction_steps(connection, make_steps()))

    async def scrub_deleted_data(self) -> None:
        try:
            await asyncio.to_thread(_vacuum_file, self._path, self._options)
        except sqlite3.Error as error:
            raise translate_driver_error(error) from error
        await self._truncate_write_ahead_log()

    async def _truncate_write_ahead_log(self) -> None:
        """Empties the write-ahead log, which may hold erased text."""
        # In the thread of the other checkpoints: SQLite refuses a second one at the same time.
        await self._checkpoint_thread.submit(jobs.truncate_write_ahead_log)

    def _schedule_checkpoint(self) -> None:
        """Called after each commit."""
        if self._checkpoint_timer is None:
            loop = asyncio.get_running_loop()
            self._checkpoint_timer = loop.call_later(jobs.CHECKPOINT_SECONDS, self._start_checkpoint)

    def _start_checkpoint(self) -> None:
        self._checkpoint_thread.submit(jobs.copy_write_ahead_log).add_done_callback(self._forget_checkpoint)

    def _forget_checkpoint(self, _: asyncio.Future[None]) -> None:
        self._checkpoint_timer = None


def _vacuum_file(path: Path, options: SqliteOptions) -> None:
    """Rewrites the file. Only this removes all deleted text: SQLite moves rows between pages, and `secure_delete` does
    not overwrite the copies that stay in the free part of a page.
    """
    with contextlib.closing(open_sqlite_connection(path, options)) as connection:
        # The copy has the size of the database, which may not fit in memory.
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")


def _read_schema_version(connection: sqlite3.Connection) -> str:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
        return "none"
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return "none" if row is None else str(row[0])
