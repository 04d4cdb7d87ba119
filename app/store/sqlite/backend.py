"""The store in a SQLite file: the embedded default. Several processes may open the same file.

The file has a write-ahead log, so readers never wait for the writer. One writer thread with group commit; one reader
thread for look-ups and one for ranges, so that reading a long log delays no look-up; one thread for checkpoints, so
that commits do not wait while the write-ahead log is copied into the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from app.conversation.conversation_types import AnswerAnchor, ClientVersion, Conversation, LogMessage, Summary
from app.conversation.identity import extract_family_root
from app.errors import StoreUnavailable
from app.store.contract.conversations import ConversationHit, LinkMatch, LogAppend, SearchHit
from app.store.contract.leases import Lease
from app.store.contract.store import StoreInfo
from app.store.lineage import (
    clip_ranges_to_log,
    count_range_messages,
    find_range_segments,
    find_segments,
    locate_messages,
)
from app.store.search.term_ranking import hash_message_terms, hash_terms, split_index_batches
from app.store.sql import conversation_transactions, summary_transactions
from app.store.sql.dialects import SQLITE, Rows, TransactionSteps
from app.store.sql.required_schema_version import SCHEMA_VERSION
from app.store.sql.side_tables import SqlSideTables
from app.store.sqlite import reads, term_index, writes
from app.store.sqlite.append_batching import AppendJob, run_jobs_combining_appends
from app.store.sqlite.checkpoints import CHECKPOINT_SECONDS, copy_write_ahead_log, truncate_write_ahead_log
from app.store.sqlite.erased_remains import (
    ERASURE_SCAN_BYTES,
    REDACTION_SCAN_BYTES,
    has_erased_text,
    vacuum_file,
)
from app.store.sqlite.threads import (
    DatabaseThread,
    SqliteOptions,
    open_sqlite_connection,
    run_batch_in_transaction,
    run_read_jobs,
    translate_driver_error,
)

Result = TypeVar("Result")


class SqliteStore(SqlSideTables):
    """`Store` on one SQLite file. The file's schema must be up to date when the store opens.

    Args:
        connect: opens the connection of one of the store's threads.
        redaction_scan_bytes: as `REDACTION_SCAN_BYTES`.
    """

    is_fully_searchable = True

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime],
        options: SqliteOptions | None = None,
        connect: Callable[[Path, SqliteOptions], sqlite3.Connection] = open_sqlite_connection,
        redaction_scan_bytes: int = REDACTION_SCAN_BYTES,
    ) -> None:
        super().__init__(SQLITE, clock=clock)
        self._path = path
        self._options = options or SqliteOptions()
        self._redaction_scan_bytes = redaction_scan_bytes
        open_file = partial(connect, path, self._options)
        self._writer_thread = DatabaseThread(
            "store-writer",
            open_file,
            partial(run_batch_in_transaction, run_all=run_jobs_combining_appends),
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
        version = (await self.check()).schema_version
        if version != SCHEMA_VERSION:
            await self.close()
            raise StoreUnavailable(
                f"The schema of {str(self._path)!r} is {version!r}, expected {SCHEMA_VERSION!r}.",
                hint="Run `concertina migrate`.",
            )

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
        skeletons: Sequence[bytes],
        named_conversation_id: str | None = None,
    ) -> list[LinkMatch]:
        return await self._lookup_thread.submit(
            partial(
                reads.find_link_matches,
                tenant=tenant,
                root=root,
                links=links,
                skeletons=skeletons,
                named_conversation_id=named_conversation_id,
            )
        )

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        root = extract_family_root(conversation_id)
        return await self._lookup_thread.submit(
            lambda connection: reads.find_conversation(connection, tenant, conversation_id, root)
        )

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        root = extract_family_root(conversation_id)
        return await self._lookup_thread.submit(
            lambda connection: reads.find_conversation_of_any_tenant(connection, conversation_id, root)
        )

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        await self._writer_thread.submit(
            partial(writes.assign_external_id, tenant=tenant, external_id=external_id, conversation=conversation)
        )

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return await self.read_log_ranges(conversation, ((from_seq, to_seq),))

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        found = await self._read_segments(conversation, ranges)
        if len(found) == sum([count_range_messages(conversation, *one) for one in ranges]):
            return found
        # Fewer messages than the log has: an ancestor was erased meanwhile, and its messages have moved. The stored
        # lineage has their new place.
        fresh = await self.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
        return found if fresh is None else await self._read_segments(fresh, clip_ranges_to_log(conversation, ranges))

    async def _read_segments(self, conversation: Conversation, ranges: Iterable[tuple[int, int]]) -> list[LogMessage]:
        segments = find_range_segments(conversation.lineage_with_self, ranges)
        if not segments:
            return []
        return await self._range_thread.submit(
            lambda connection: reads.read_log_segments(connection, conversation.root, segments)
        )

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        return await self._range_thread.submit(
            lambda connection: reads.read_client_versions(
                connection, conversation.root, conversation.lineage_with_self, until
            )
        )

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        await self._writer_thread.submit(partial(writes.add_anchors, anchors=anchors, now=self._clock()))

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        return await self._lookup_thread.submit(lambda connection: reads.find_anchors(connection, digests))

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        located_messages = locate_messages(conversation.lineage_with_self, entries)
        keys = await asyncio.to_thread(hash_message_terms, [entry for _, entry in located_messages])
        # One transaction for each batch: other writers wait for the length of one batch only.
        for part in split_index_batches(keys):
            job = partial(
                term_index.index_messages,
                conversation=conversation,
                located_messages=located_messages[part],
                keys=keys[part],
            )
            await self._writer_thread.submit(job)

    async def clear_search_index(self) -> None:
        await self._writer_thread.submit(term_index.clear_search_index)

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        segments = find_segments(conversation.lineage_with_self, max(from_seq, 0), before_seq)
        if not segments or not terms:
            return []
        keys, count = hash_terms(terms), count_range_messages(conversation, from_seq, before_seq)
        return await self._range_thread.submit(
            lambda connection: term_index.search_log(connection, conversation.root, segments, keys, count, limit)
        )

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        keys = hash_terms(terms)
        return await self._range_thread.submit(
            lambda connection: term_index.search_tenant(connection, tenant, keys, limit)
        )

    # Not async: the job is queued at the call, so that appends keep the order of the calls.
    def append(self, write: LogAppend) -> asyncio.Future[None]:
        return self._writer_thread.submit(AppendJob(write, self._clock()))

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        root = extract_family_root(conversation_id)
        texts = await self._writer_thread.submit(
            lambda connection: writes.erase_conversation(connection, tenant, conversation_id, root)
        )
        if texts is None:
            return False
        await self._remove_erased_texts(texts, ERASURE_SCAN_BYTES)
        return True

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        root = extract_family_root(conversation_id)
        return await self._writer_thread.submit(
            lambda connection: writes.replace_metadata(connection, tenant, conversation_id, root, metadata)
        )

    async def replace_marks(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        await self._run_transaction(lambda: conversation_transactions.replace_marks(SQLITE, conversation, marks))

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        redacted = await self._run_transaction(
            lambda: conversation_transactions.redact_messages(
                SQLITE, writes.SEARCH_INDEX_CLEANUP, conversation, entries
            )
        )
        await self._remove_erased_texts(redacted.erased_texts, self._redaction_scan_bytes)
        return redacted.deleted_summaries

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        await self._run_transaction(
            lambda: conversation_transactions.rewrite_sealed_fields(
                SQLITE, conversation, entries, summaries, client_versions
            )
        )

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        await self._run_transaction(lambda: summary_transactions.revise_summary(SQLITE, tenant, root, summary))

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        return await self._run_transaction(
            lambda: summary_transactions.read_summary_revisions(SQLITE, tenant, root, summary_id)
        )

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        was_there = await self._run_transaction(
            lambda: summary_transactions.delete_summary(SQLITE, tenant, root, summary_id)
        )
        if was_there:
            await self._truncate_write_ahead_log()
        return was_there

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        found = await summary_transactions.purge_stray_summaries(
            SQLITE, self._execute_long_read, self._delete_stray_summaries, created_before
        )
        if found:
            await self._truncate_write_ahead_log()
        return found

    def _execute_long_read(self, sql: str, arguments: tuple[Any, ...]) -> asyncio.Future[Rows]:
        return self._range_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    def _delete_stray_summaries(self, keys: Sequence[summary_transactions.SummaryKey]) -> asyncio.Future[int]:
        return self._run_transaction(lambda: summary_transactions.delete_stray_summaries(SQLITE, keys))

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
            lambda connection: reads.find_summaries(
                connection, tenant, root, path, links, from_link, with_texts=with_texts
            )
        )

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        now = self._clock()
        await self._writer_thread.submit(
            lambda connection: writes.add_summary(connection, tenant, root, summary, fence, now)
        )

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        now = self._clock()
        return await self._writer_thread.submit(
            lambda connection: writes.claim_lease(connection, root, key, holder, seconds, now)
        )

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        now = self._clock()
        return await self._writer_thread.submit(
            lambda connection: writes.renew_leases(connection, leases, seconds, now)
        )

    async def release_lease(self, lease: Lease) -> None:
        await self._writer_thread.submit(lambda connection: writes.release_lease(connection, lease))

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        return await self._lookup_thread.submit(reads.read_model_facts)

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        now = self._clock()
        await self._writer_thread.submit(lambda connection: writes.merge_model_facts(connection, model, facts, now))

    async def _execute_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._lookup_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    async def _execute_write(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._writer_thread.submit(lambda connection: connection.execute(sql, arguments).fetchall())

    def _run_transaction(self, make_steps: Callable[[], TransactionSteps[Result]]) -> asyncio.Future[Result]:
        """Runs steps in the writer's transaction. The generator is made inside the job: when a failed batch runs again,
        it needs a new one.
        """
        return self._writer_thread.submit(lambda connection: writes.run_transaction_steps(connection, make_steps()))

    async def scrub_deleted_data(self) -> None:
        try:
            await asyncio.to_thread(vacuum_file, self._path, self._options)
        except sqlite3.Error as error:
            raise translate_driver_error(error) from error
        await self._truncate_write_ahead_log()

    async def _remove_erased_texts(self, texts: Sequence[str], budget_bytes: int) -> None:
        """Removes erased texts from the database's files, as far as that takes a short time.

        Args:
            texts: the erased texts, or their beginnings.
            budget_bytes: the most bytes to search for remains.
        """
        await self._truncate_write_ahead_log()
        search = partial(has_erased_text, self._path, self._options, texts, budget_bytes=budget_bytes)
        if await asyncio.to_thread(search):
            await self.scrub_deleted_data()

    async def _truncate_write_ahead_log(self) -> None:
        """Empties the write-ahead log, which may hold erased text."""
        # In the thread of the other checkpoints: SQLite refuses a second one at the same time.
        await self._checkpoint_thread.submit(truncate_write_ahead_log)

    def _schedule_checkpoint(self) -> None:
        """Called after each commit."""
        if self._checkpoint_timer is None:
            loop = asyncio.get_running_loop()
            self._checkpoint_timer = loop.call_later(CHECKPOINT_SECONDS, self._start_checkpoint)

    def _start_checkpoint(self) -> None:
        self._checkpoint_thread.submit(copy_write_ahead_log).add_done_callback(self._forget_checkpoint)

    def _forget_checkpoint(self, _: asyncio.Future[None]) -> None:
        self._checkpoint_timer = None


def _read_schema_version(connection: sqlite3.Connection) -> str:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
        return "none"
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return "none" if row is None else str(row[0])
