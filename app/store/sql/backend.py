"""The part of the store that is the same on SQLite and PostgreSQL. Each backend adds what its database does in its own
way: appends, look-ups by link, anchors, the search index, leases.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage, StoredCompletion, Summary
from app.conversation.identity import extract_family_root
from app.errors import StoreUnavailable
from app.store.contract.conversations import ConversationHit, MessageVectors, SearchHit
from app.store.contract.leases import Lease
from app.store.contract.store import StoreInfo
from app.store.lineage import (
    LogSegment,
    clip_ranges_to_log,
    count_range_messages,
    find_range_segments,
    find_segments,
    first_own_seq,
    locate_messages,
)
from app.store.search.term_ranking import hash_message_terms, hash_terms, split_index_batches, weights_to_score
from app.store.sql import conversation_transactions, summary_transactions
from app.store.sql.dialects import Rows, Statement, TransactionSteps
from app.store.sql.request_table import SqlRequests
from app.store.sql.required_schema_version import SCHEMA_VERSION
from app.store.sql.rows import (
    CLIENT_VERSION_COLUMNS,
    CONVERSATION_COLUMNS,
    MESSAGE_COLUMNS,
    decode_client_version,
    decode_conversation,
    decode_log_message,
    encode_json,
    lease_values,
)
from app.store.sql.search_index import SearchIndexCleanup
from app.store.sql.statements import LEASE_PARAMETERS, RELEASE_LEASE, SELECT_ANY_CONVERSATION, SELECT_BY_EXTERNAL_ID
from app.store.sql.vectors import add_vectors

Result = TypeVar("Result")

_REPLACE_METADATA: Final = f"""
    UPDATE conversations SET metadata = :metadata WHERE root = :root AND id = :id AND tenant = :tenant
    RETURNING {", ".join(CONVERSATION_COLUMNS)}"""


_ASSIGN_EXTERNAL_ID: Final = """
    INSERT INTO external_ids (tenant, external_id, root, conversation_id)
    VALUES (:tenant, :external_id, :root, :id)
    ON CONFLICT (tenant, external_id) DO UPDATE SET root = excluded.root, conversation_id = excluded.conversation_id"""
_RENAME: Final = "UPDATE conversations SET external_id = :external_id WHERE root = :root AND id = :id"
# Tokens are microseconds since 1970, and grow even though releasing a lease deletes the row.
_CLAIM_LEASE: Final = """
    INSERT INTO leases (root, key, holder, token, expires_at) VALUES (:root, :key, :holder, {token}, {deadline})
    ON CONFLICT (root, key) DO UPDATE
    SET holder = excluded.holder, expires_at = excluded.expires_at,
        token = CASE WHEN excluded.token > leases.token THEN excluded.token ELSE leases.token + 1 END
    WHERE leases.expires_at <= {now} OR leases.holder = excluded.holder
    RETURNING token"""
_RENEW_LEASES: Final = """
    WITH w (root, key, holder, token) AS (VALUES {leases})
    UPDATE leases SET expires_at = {deadline} FROM w
    WHERE leases.root = w.root AND leases.key = w.key AND leases.holder = w.holder AND leases.token = w.token
    RETURNING leases.root, leases.key, leases.holder, leases.token"""
MAX_SELECTS: Final = 64
"""SELECTs of one statement. SQLite allows 500."""
_SELECT_MESSAGES: Final = f"""
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages
    WHERE root = :root AND conversation_id = :id{{n}} AND seq >= :from_seq{{n}} AND seq < :to_seq{{n}}"""
_SELECT_VECTORS: Final = """
    SELECT seq, link, vectors FROM message_vectors
    WHERE root = :root AND conversation_id = :id{n} AND model = :model{n}
      AND seq >= :from_seq{n} AND seq < :to_seq{n}"""
_SELECT_CLIENT_VERSIONS: Final = f"""
    SELECT {", ".join(CLIENT_VERSION_COLUMNS)} FROM client_versions
    WHERE root = :root AND conversation_id = :id{{n}} AND since_seq <= :until_seq{{n}}"""


class SqlStore(SqlRequests):
    """The part of `Store` that is the same on SQLite and PostgreSQL."""

    is_fully_searchable = True
    search_index_cleanup: SearchIndexCleanup
    microsecond_sql = "{}"
    """SQL for the microseconds since 1970 that `_encode_microsecond` returns, with a place for its parameter."""

    @abstractmethod
    async def check(self) -> StoreInfo:
        """As `Store.check`."""

    @abstractmethod
    async def close(self) -> None:
        """As `Store.close`."""

    @abstractmethod
    def _index_batch(
        self,
        conversation: Conversation,
        located_messages: Sequence[tuple[str, LogMessage]],
        keys: Sequence[Sequence[int]],
    ) -> Awaitable[None]:
        """Adds messages to the search index, in one transaction.

        Args:
            located_messages: messages, each with the id of the conversation whose rows hold it.
            keys: the term keys of each message.
        """

    @abstractmethod
    def _search_segments(
        self, root: str, segments: Sequence[LogSegment], keys: Sequence[int], message_count: int, limit: int
    ) -> Awaitable[Rows]:
        """Searches at least one segment for term keys. Rows: the sum of weights, NULL for a neighbour, then
        `MESSAGE_COLUMNS`; in the order of `ConversationStore.search_log`.

        Args:
            message_count: the messages of all segments.
        """

    @abstractmethod
    def _search_tenant_index(self, tenant: str, keys: Sequence[int], limit: int) -> Awaitable[Rows]:
        """Searches the conversations of a tenant for term keys. Rows: the sum of weights, then `CONVERSATION_COLUMNS`;
        in the order of `ConversationStore.search_tenant`.
        """

    @abstractmethod
    def _build_fence_query(self, fence: Lease) -> Statement:
        """Builds the query that returns a row if the lease of a fence is held now."""

    async def _execute_long_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        """As `_execute_read`, for a statement that reads many rows."""
        return await self._execute_read(sql, arguments)

    async def _require_current_schema(self, subject: str) -> None:
        """Closes the store if its schema has another version than this release needs.

        Args:
            subject: names the schema in the error.

        Raises:
            StoreUnavailable: the schema has another version.
        """
        version = (await self.check()).schema_version
        if version != SCHEMA_VERSION:
            await self.close()
            raise StoreUnavailable(
                f"{subject} is {version!r}, expected {SCHEMA_VERSION!r}.", hint="Run `concertina migrate`."
            )

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        rows = await self._execute_read(*self._dialect.build_conversation_query(tenant, conversation_id))
        return decode_conversation(rows[0]) if rows else None

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        root = extract_family_root(conversation_id)
        if root is None:
            return None
        rows = await self._read_rows(SELECT_ANY_CONVERSATION, root=root, id=conversation_id)
        return decode_conversation(rows[0]) if rows else None

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        found = await self.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if found is None:
            return None
        rows = await self._write_rows(
            _REPLACE_METADATA, root=found.root, id=found.id, tenant=tenant, metadata=encode_json(metadata)
        )
        return decode_conversation(rows[0]) if rows else None

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return await self.read_log_ranges(conversation, ((from_seq, to_seq),))

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        found = await self._read_ranges(conversation, ranges)
        if len(found) == sum([count_range_messages(conversation, *one) for one in ranges]):
            return found
        # Fewer messages than the log has: an ancestor was erased meanwhile, and its messages have moved. The stored
        # lineage has their new place.
        fresh = await self.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
        return found if fresh is None else await self._read_ranges(fresh, clip_ranges_to_log(conversation, ranges))

    async def _read_ranges(self, conversation: Conversation, ranges: Iterable[tuple[int, int]]) -> list[LogMessage]:
        segments = find_range_segments(conversation.lineage_with_self, ranges)
        parts = [{"id": one.conversation_id, "from_seq": one.from_seq, "to_seq": one.to_seq} for one in segments]
        return list(map(decode_log_message, await self._read_union(_SELECT_MESSAGES, "seq", conversation.root, parts)))

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        parts = [
            {"id": owner_id, "until_seq": min(upto_seq, until)} for owner_id, upto_seq in conversation.lineage_with_self
        ]
        rows = await self._read_union(_SELECT_CLIENT_VERSIONS, "since_seq, seq", conversation.root, parts)
        return list(map(decode_client_version, rows))

    async def _read_union(self, select: str, order: str, root: str, parts: Sequence[Mapping[str, Any]]) -> Rows:
        """Reads rows with one SELECT for each part, so that each uses its own range of an index.

        Args:
            select: has the parameter `:root`, and each of a part's names followed by `{n}`.
        """
        rows: Rows = []
        for start in range(0, len(parts), MAX_SELECTS):
            selected = parts[start : start + MAX_SELECTS]
            text = " UNION ALL ".join(select.format(n=n) for n in range(len(selected)))
            values = {f"{name}{n}": value for n, part in enumerate(selected) for name, value in part.items()}
            rows += await self._execute_long_read(
                *self._dialect.build_statement(f"{text} ORDER BY {order}", root=root, **values)
            )
        return rows

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        located_messages = locate_messages(conversation.lineage_with_self, entries)
        keys = await asyncio.to_thread(hash_message_terms, [entry for _, entry in located_messages])
        # One transaction for each batch: other writers wait for the length of one batch only.
        for part in split_index_batches(keys):
            await self._index_batch(conversation, located_messages[part], keys[part])

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        segments = find_segments(conversation.lineage_with_self, max(from_seq, 0), before_seq)
        if not segments or not terms:
            return []
        message_count = count_range_messages(conversation, from_seq, before_seq)
        rows = await self._search_segments(conversation.root, segments, hash_terms(terms), message_count, limit)
        return [
            SearchHit(decode_log_message(row[1:]), None if row[0] is None else weights_to_score(row[0])) for row in rows
        ]

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        keys = hash_terms(terms)
        rows = await self._search_tenant_index(tenant, keys, limit)
        conversations = [decode_conversation(row[1:]) for row in rows]
        # Further statements, since messages are found by root, and the roots are known only now.
        best = await asyncio.gather(*(self._find_best_message(one, keys) for one in conversations))
        return [
            ConversationHit(conversation, message, weights_to_score(row[0]))
            for row, conversation, message in zip(rows, conversations, best, strict=True)
            if message is not None
        ]

    async def _find_best_message(self, conversation: Conversation, keys: Sequence[int]) -> LogMessage | None:
        """Returns the message in a conversation's own rows that holds the rarest of the term keys."""
        start, end = first_own_seq(conversation), conversation.head_seq + 1
        own = find_segments(conversation.lineage_with_self, start, end)
        rows = await self._search_segments(conversation.root, own, keys, end - start, 1) if own else []
        return next((decode_log_message(row[1:]) for row in rows if row[0] is not None), None)

    async def add_vectors(self, conversation: Conversation, *, model: str, vectors: Sequence[MessageVectors]) -> None:
        await self._run_transaction(lambda: add_vectors(self._dialect, conversation, model, vectors))

    async def read_vectors(
        self, conversation: Conversation, *, model: str, from_seq: int, before_seq: int
    ) -> list[MessageVectors]:
        segments = find_segments(conversation.lineage_with_self, max(from_seq, 0), before_seq)
        parts = [
            {"id": one.conversation_id, "model": model, "from_seq": one.from_seq, "to_seq": one.to_seq}
            for one in segments
        ]
        rows = await self._read_union(_SELECT_VECTORS, "seq", conversation.root, parts)
        return [MessageVectors(*row) for row in rows]

    async def clear_vectors(self) -> None:
        await self._write_rows("DELETE FROM message_vectors")

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        conversation = await self.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if conversation is None:
            return False
        return await self._run_transaction(
            lambda: conversation_transactions.erase_conversation(
                self._dialect, self.search_index_cleanup, conversation
            ),
            exclusive_root=conversation.root,
        )

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        return await self._run_transaction(
            lambda: conversation_transactions.redact_messages(
                self._dialect, self.search_index_cleanup, conversation, entries
            ),
            exclusive_root=conversation.root,
        )

    async def replace_marks(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        await self._run_transaction(lambda: conversation_transactions.replace_marks(self._dialect, conversation, marks))

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
                self._dialect, conversation, entries, summaries, client_versions
            )
        )

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        fence_query = self._build_fence_query(fence)
        await self._run_transaction(
            lambda: summary_transactions.add_summary(self._dialect, tenant, root, summary, fence_query)
        )

    async def save_completion(self, completion: StoredCompletion) -> None:
        await self._run_transaction(lambda: conversation_transactions.save_completion(self._dialect, completion))

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        await self._run_transaction(lambda: summary_transactions.revise_summary(self._dialect, tenant, root, summary))

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        return await self._run_transaction(
            lambda: summary_transactions.read_summary_revisions(self._dialect, tenant, root, summary_id)
        )

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        return await self._run_transaction(
            lambda: summary_transactions.delete_summary(self._dialect, tenant, root, summary_id)
        )

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        found, after = 0, ("", "")
        while True:
            page = summary_transactions.build_stray_page_query(self._dialect, created_before, after)
            rows = await self._execute_long_read(*page)
            if strays := [(root, chunk_id, tenant) for root, chunk_id, tenant, is_stray in rows if is_stray]:
                found += await self._run_transaction(
                    partial(summary_transactions.delete_stray_summaries, self._dialect, strays)
                )
            if len(rows) < summary_transactions.STRAY_PAGE_SIZE:
                return found
            after = rows[-1][0], rows[-1][1]

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        build_statement = self._dialect.build_statement

        def steps() -> TransactionSteps[None]:
            # The former conversation loses the id: two with one external id would both be listed under it.
            rows = yield build_statement(SELECT_BY_EXTERNAL_ID, tenant=tenant, external_id=external_id)
            for former in map(decode_conversation, rows):
                yield build_statement(_RENAME, external_id=None, root=former.root, id=former.id)
            here = {"external_id": external_id, "root": conversation.root, "id": conversation.id}
            yield build_statement(_ASSIGN_EXTERNAL_ID, tenant=tenant, **here)
            yield build_statement(_RENAME, **here)

        await self._run_transaction(steps, exclusive_root=f"external id {external_id!r} of {tenant!r}")

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        text = _CLAIM_LEASE.format(
            token=self.microsecond_sql.format(":token"),
            deadline=self.deadline_sql.format(":expires_at"),
            now=self.deadline_sql.format(":now"),
        )
        rows = await self._write_rows(
            text,
            root=root,
            key=key,
            holder=holder,
            token=self._encode_microsecond(),
            expires_at=self._encode_deadline(seconds),
            now=self._encode_deadline(),
        )
        return Lease(root, key, holder, rows[0][0]) if rows else None

    def _encode_microsecond(self) -> int:
        return int(self._clock().timestamp() * 1_000_000)

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        if not leases:
            return []
        values: dict[str, Any] = {"expires_at": self._encode_deadline(seconds)}
        for n, lease in enumerate(leases):
            values |= {
                f"root{n}": lease.root,
                f"key{n}": lease.key,
                f"holder{n}": lease.holder,
                f"token{n}": lease.token,
            }
        held = ", ".join(f"(:root{n}, :key{n}, :holder{n}, CAST(:token{n} AS BIGINT))" for n in range(len(leases)))
        text = _RENEW_LEASES.format(deadline=self.deadline_sql.format(":expires_at"), leases=held)
        renewed = {tuple(row) for row in await self._write_rows(text, **values)}
        return [lease for lease in leases if lease_values(lease) not in renewed]

    async def release_lease(self, lease: Lease) -> None:
        await self._write_rows(RELEASE_LEASE, **dict(zip(LEASE_PARAMETERS, lease_values(lease), strict=True)))

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        now = self._dialect.encode_time(self._clock())

        def steps() -> TransactionSteps[None]:
            rows = yield self._dialect.build_statement(
                "SELECT facts FROM model_facts WHERE model = :model", model=model
            )
            known = orjson.loads(rows[0][0]) if rows else {}
            yield self._dialect.build_statement(
                """
                INSERT INTO model_facts (model, facts, updated_at) VALUES (:model, :facts, :now)
                ON CONFLICT (model) DO UPDATE SET facts = excluded.facts, updated_at = excluded.updated_at""",
                model=model,
                facts=encode_json({**known, **facts}),
                now=now,
            )

        await self._run_transaction(steps, exclusive_root=f"facts of {model}")

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        rows = await self._read_rows("SELECT model, facts FROM model_facts")
        return {model: orjson.loads(facts) for model, facts in rows}
