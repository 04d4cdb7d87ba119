"""The store in PostgreSQL, on the bare driver. Each step of a turn is one statement and one round trip.

Works behind a pooler in transaction mode: no session state, no LISTEN, no session locks. Leases and claims of
idempotency keys use the database's clock, which all processes share.

Erased text is in no row and no index. The server's files keep dead rows until VACUUM removes them; its write-ahead log
and backups keep them as long as they exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import asyncpg

from app.conversation.conversation_types import (
    AnswerAnchor,
    AnswerProof,
    Conversation,
    IssuedAnswer,
    LogMessage,
    Summary,
)
from app.store.contract.conversations import DEEPEST_LINKS, LAST_LINKS, LinkMatch, LogAppend
from app.store.contract.leases import Lease
from app.store.contract.store import StoreInfo
from app.store.lineage import LogSegment, find_gapless_leading_range, order_links_deepest_first
from app.store.postgres import statements, term_index
from app.store.postgres.append_queue import AppendQueue, build_anchor_arguments, build_issue_arguments
from app.store.postgres.pool import PostgresOptions, PostgresPool
from app.store.search.term_ranking import hash_conversation_scope, hash_tenant_scope, term_key_prefix
from app.store.sql.backend import SqlStore
from app.store.sql.dialects import POSTGRES, Rows, Statement, TransactionSteps
from app.store.sql.fingerprints import decode_proof
from app.store.sql.rows import (
    decode_link_match,
    decode_summary,
    lease_values,
)

Result = TypeVar("Result")


class PostgresStore(SqlStore):
    """`Store` on a PostgreSQL database. The schema must be up to date when the store opens."""

    search_index_cleanup = term_index.SEARCH_INDEX_CLEANUP
    deadline_sql = "now() + make_interval(secs => {}::float8)"
    # The clock, and not `now()`: a transaction may have waited for its lock since it began.
    second_sql = "(floor(extract(epoch FROM clock_timestamp()))::bigint + {}::bigint)"

    microsecond_sql = "((extract(epoch FROM now()) * 1000000)::bigint + {}::bigint)"

    def __init__(self, dsn: str, *, clock: Callable[[], datetime], options: PostgresOptions | None = None) -> None:
        super().__init__(POSTGRES, clock=clock)
        self._connections = PostgresPool(dsn, options or PostgresOptions())
        self._appends = AppendQueue(self._connections)

    async def open(self) -> None:
        await self._connections.open()
        await self._require_current_schema("The database's schema")

    async def close(self) -> None:
        # Queued appends need the connections.
        await self._appends.close()
        await self._connections.close()

    def _encode_deadline(self, after_seconds: float = 0) -> float:
        return float(after_seconds)

    def _encode_second(self) -> int:
        return 0

    def _encode_microsecond(self) -> int:
        return 0

    async def check(self) -> StoreInfo:
        try:
            rows = await self._connections.fetch(
                "SELECT version_num, current_setting('server_version') FROM alembic_version"
            )
        # An empty database: `open` then reports the missing schema.
        except asyncpg.UndefinedTableError:
            rows = []
        version, server = rows[0] if rows else ("none", "unknown")
        return StoreInfo("postgresql", version, {"server_version": server})

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        named_conversation_id: str | None = None,
        with_unanswered: bool = False,
    ) -> list[LinkMatch]:
        build_query = partial(
            statements.build_link_lookup_query,
            within=named_conversation_id is not None,
            with_unanswered=with_unanswered,
        )
        scope_arguments = (root, tenant) if named_conversation_id is None else (root, tenant, named_conversation_id)
        rows = await self._connections.fetch(
            build_query(near=True),
            *scope_arguments,
            _concatenate_links(links[-LAST_LINKS:]),
            _concatenate_links(links[-DEEPEST_LINKS:]),
        )
        if not rows and len(links) > DEEPEST_LINKS:
            earlier_links = _concatenate_links(links[:-DEEPEST_LINKS])
            rows = await self._connections.fetch(build_query(near=False), *scope_arguments, earlier_links)
        return [decode_link_match(row[1:]) for row in rows]

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        await self._connections.fetch(statements.ADD_ANCHORS, *build_anchor_arguments(anchors, self._clock()))

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        return [AnswerAnchor(*row) for row in await self._connections.fetch(statements.FIND_ANCHORS, list(digests))]

    async def issue_answer(self, issued: IssuedAnswer) -> None:
        await self._connections.fetch(statements.ISSUE_ANSWERS, *build_issue_arguments([issued]))

    async def find_proofs(self, *, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
        digests = list(dict.fromkeys(fingerprints))
        return [decode_proof(row) for row in await self._connections.fetch(statements.FIND_PROOFS, tenant, digests)]

    async def _index_batch(
        self,
        conversation: Conversation,
        located_messages: Sequence[tuple[str, LogMessage]],
        keys: Sequence[Sequence[int]],
    ) -> None:
        root, tenant = conversation.root, conversation.tenant
        prefixes = {owner_id: term_key_prefix(root, owner_id) for owner_id, _ in located_messages}
        async with self._connections.transaction() as connection:
            rows = await connection.fetch(
                term_index.INSERT_TERMS,
                root,
                tenant,
                [owner_id for owner_id, _ in located_messages],
                [entry.seq for _, entry in located_messages],
                [entry.link for _, entry in located_messages],
                [
                    term_index.render_term_array(prefixes[owner_id], terms)
                    for (owner_id, _), terms in zip(located_messages, keys, strict=True)
                ],
            )
            terms_at = {entry.seq: terms for (_, entry), terms in zip(located_messages, keys, strict=True)}
            terms_by_conversation: dict[str, set[int]] = {}
            for owner_id, seq, redacted in rows:
                if terms_at[seq] and not redacted:
                    terms_by_conversation.setdefault(owner_id, set()).update(terms_at[seq])
            await _add_to_tenant_index(connection, tenant, root, terms_by_conversation)
            # Redacted messages count as indexed: they are stored, and have no terms to search.
            start, end = find_gapless_leading_range([entry for _, entry in located_messages])
            if {seq for _, seq, _ in rows}.issuperset(range(start, end)):
                await connection.execute(statements.ADVANCE_INDEXED_BEFORE, root, conversation.id, tenant, start, end)

    async def clear_search_index(self) -> None:
        await self._connections.fetch(term_index.CLEAR_INDEX)
        # A thousand rows at a time, so that no statement runs into the time limit of an answer.
        while await self._connections.fetch(term_index.RESET_INDEXED_BEFORE):
            pass

    async def scrub_deleted_data(self) -> None:
        """Does nothing: `VACUUM FULL` locks whole tables, which is the operator's decision."""

    def _search_segments(
        self, root: str, segments: Sequence[LogSegment], keys: Sequence[int], message_count: int, limit: int
    ) -> Awaitable[Rows]:
        return self._connections.fetch(
            term_index.SEARCH_LOG,
            root,
            [one.conversation_id for one in segments],
            [term_key_prefix(root, one.conversation_id) for one in segments],
            [one.from_seq for one in segments],
            [one.to_seq for one in segments],
            keys,
            message_count,
            limit,
        )

    def _search_tenant_index(self, tenant: str, keys: Sequence[int], limit: int) -> Awaitable[Rows]:
        return self._connections.fetch(term_index.SEARCH_TENANT, hash_tenant_scope(tenant), tenant, keys, limit)

    # Not async: the write is queued at the call, and ends even if its caller is cancelled.
    def append(self, write: LogAppend) -> asyncio.Future[None]:
        return self._appends.append(write, self._clock())

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
        # Without either, the query would have no FROM clause.
        if not path and not links:
            return []
        begins = bool(path) and from_link is not None
        sql = statements.build_summaries_query(
            on_path=bool(path), begins=begins, at_links=bool(links), with_texts=with_texts
        )
        arguments: list[Any] = [root, tenant]
        if path:
            arguments += [[ancestor_id for ancestor_id, _ in path], [upto_seq for _, upto_seq in path]]
        if begins:
            arguments.append(from_link)
        if links:
            arguments.append(links)
        return [decode_summary(row) for row in await self._connections.fetch(sql, *arguments)]

    def _build_fence_query(self, fence: Lease) -> Statement:
        return statements.FENCE_QUERY, lease_values(fence)

    async def _execute_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._connections.fetch(sql, *arguments)

    async def _execute_write(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._connections.fetch(sql, *arguments)

    async def _run_transaction(
        self, make_steps: Callable[[], TransactionSteps[Result]], *, exclusive_root: str | None = None
    ) -> Result:
        steps = make_steps()
        async with self._connections.transaction() as connection:
            if exclusive_root is not None:
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", exclusive_root)
            rows: Rows | None = None
            while True:
                try:
                    sql, arguments = next(steps) if rows is None else steps.send(rows)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                rows = await connection.fetch(sql, *arguments)


async def _add_to_tenant_index(
    connection: Any, tenant: str, root: str, terms_by_conversation: Mapping[str, set[int]]
) -> None:
    """Adds terms of conversations to the search index over all of a tenant's conversations."""
    if not terms_by_conversation:
        return
    tenant_scope, conversation_ids = hash_tenant_scope(tenant), sorted(terms_by_conversation)
    await connection.execute(
        term_index.INSERT_TENANT_POSTINGS,
        tenant_scope,
        *term_index.build_posting_columns(root, terms_by_conversation),
    )
    scopes = [hash_conversation_scope(root, conversation_id) for conversation_id in conversation_ids]
    await connection.execute(term_index.INSERT_TENANT_SCOPES, tenant_scope, root, scopes, conversation_ids)


def _concatenate_links(links: Sequence[bytes]) -> bytes:
    return b"".join(order_links_deepest_first(links))
