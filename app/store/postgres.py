"""Conversations in PostgreSQL, on the bare driver. Each step of a turn is one statement and one round trip.

Works behind a pooler in transaction mode: no session state, no LISTEN, no session locks. Leases run on the database's
clock, which all processes share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import asyncpg
import orjson

from app.conversation.identity import root_of_conversation
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.errors import StoreUnavailable
from app.store import postgres_search
from app.store import postgres_statements as statements
from app.store.base import NEAR_LINKS, WINDOW_LINKS, Append, Found, HeadMoved, Lease, LeaseLost, Match, StoreInfo
from app.store.lineage import deepest_first, erasure, expected_count, placed, stretches
from app.store.postgres_pool import Connections, PostgresOptions
from app.store.postgres_statements import SQL
from app.store.rows import (
    MESSAGE_COLUMNS,
    as_json,
    as_optional_json,
    chunk_of,
    chunk_values,
    conversation_of,
    lineage_json,
    lineage_of,
    log_message_of,
)
from app.store.search import keys_of_messages, keys_of_terms, scope_prefix, score
from app.store.tables import SCHEMA_VERSION

_MESSAGE: Final = len(MESSAGE_COLUMNS)
_place_of: Final = attrgetter("root", "key", "holder", "token")


class PostgresStore:
    """`Store` on a PostgreSQL database, whose schema must be up to date when it is opened."""

    def __init__(self, dsn: str, *, clock: Callable[[], datetime], options: PostgresOptions | None = None) -> None:
        self._connections = Connections(dsn, options or PostgresOptions())
        self._clock = clock

    async def open(self) -> None:
        await self._connections.open()
        version = (await self.check()).schema_version
        if version != SCHEMA_VERSION:
            await self.close()
            raise StoreUnavailable(
                f"The database's schema is {version!r}, expected {SCHEMA_VERSION!r}.", hint="Run `concertina migrate`."
            )

    async def close(self) -> None:
        await self._connections.close()

    async def check(self) -> StoreInfo:
        try:
            rows = await self._connections.fetch(
                "SELECT version_num, current_setting('server_version') FROM alembic_version"
            )
        except asyncpg.UndefinedTableError:
            rows = []
        version, server = rows[0] if rows else ("none", "unknown")
        return StoreInfo("postgresql", version, {"server_version": server})

    async def find(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        within: str | None = None,
    ) -> list[Match]:
        place = (root, tenant) if within is None else (root, tenant, within)
        by_link, by_skeleton = await self._matches(
            statements.find_sql(within=within is not None, near=True),
            *place,
            _end_to_end(links[-NEAR_LINKS:]),
            _end_to_end(links[-WINDOW_LINKS:]),
            _end_to_end(skeletons[-WINDOW_LINKS:]),
        )
        more_skeletons = [] if by_skeleton else skeletons[:-WINDOW_LINKS]
        if by_link or not (links[:-WINDOW_LINKS] or more_skeletons):
            return by_link + by_skeleton
        by_link, shallower = await self._matches(
            statements.find_sql(within=within is not None, near=False),
            *place,
            _end_to_end(links[:-WINDOW_LINKS]),
            _end_to_end(more_skeletons),
        )
        return by_link + (by_skeleton or shallower)

    async def _matches(self, sql: str, *arguments: Any) -> tuple[list[Match], list[Match]]:
        """By link, by skeleton; each deepest first."""
        found: tuple[list[Match], list[Match]] = ([], [])
        for row in await self._connections.fetch(sql, *arguments):
            by_skeleton = row[0]
            conversation = conversation_of(row[2 + _MESSAGE :])
            found[by_skeleton].append(Match(conversation, log_message_of(row[2 : 2 + _MESSAGE]), by_skeleton))
        return found

    async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        if root is not None:
            rows = await self._connections.fetch(SQL.by_id, root, conversation_id, tenant)
        else:
            rows = await self._connections.fetch(SQL.by_external_id, tenant, conversation_id)
        return conversation_of(rows[0]) if rows else None

    async def look_up(self, conversation_id: str) -> Conversation | None:
        root = root_of_conversation(conversation_id)
        rows = [] if root is None else await self._connections.fetch(SQL.by_id_alone, root, conversation_id)
        return conversation_of(rows[0]) if rows else None

    async def point(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        await self._connections.fetch(statements.POINT, tenant, external_id, conversation.root, conversation.id)

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        found = await self._read(conversation, from_seq, to_seq)
        if len(found) == expected_count(conversation, from_seq, to_seq):
            return found
        # An ancestor was erased meanwhile and its messages have moved: the stored lineage says where to.
        fresh = await self.get(tenant=conversation.tenant, conversation_id=conversation.id)
        return found if fresh is None else await self._read(fresh, from_seq, min(to_seq, conversation.head_seq + 1))

    async def _read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        wanted = stretches(conversation.path, max(from_seq, 0), to_seq)
        if not wanted:
            return []
        if len(wanted) == 1:
            (one,) = wanted
            rows = await self._connections.fetch(
                SQL.log_range, conversation.root, one.conversation_id, one.from_seq, one.to_seq
            )
        else:
            rows = await self._connections.fetch(
                statements.READ_STRETCHES,
                conversation.root,
                [one.conversation_id for one in wanted],
                [one.from_seq for one in wanted],
                [one.to_seq for one in wanted],
            )
        return [log_message_of(row) for row in rows]

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        kept = placed(conversation.path, entries)
        if not kept:
            return
        root = conversation.root
        keys = await asyncio.to_thread(keys_of_messages, [entry for _, entry in kept])
        prefixes = {place: scope_prefix(root, place) for place, _ in kept}
        await self._connections.fetch(
            postgres_search.INDEX,
            root,
            conversation.tenant,
            [place for place, _ in kept],
            [entry.seq for _, entry in kept],
            [entry.link for _, entry in kept],
            [postgres_search.array_text(prefixes[place], terms) for (place, _), terms in zip(kept, keys, strict=True)],
        )

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        wanted = stretches(conversation.path, max(from_seq, 0), before_seq)
        if not wanted or not terms:
            return []
        rows = await self._connections.fetch(
            postgres_search.SEARCH,
            conversation.root,
            [one.conversation_id for one in wanted],
            [scope_prefix(conversation.root, one.conversation_id) for one in wanted],
            [one.from_seq for one in wanted],
            [one.to_seq for one in wanted],
            keys_of_terms(terms),
            expected_count(conversation, from_seq, before_seq),
            limit,
        )
        return [Found(log_message_of(row[1:]), None if row[0] is None else score(row[0])) for row in rows]

    async def append(self, write: Append) -> None:
        now = self._clock()
        fence = write.fence
        sql = statements.append_sql(
            creates=write.creates,
            names=write.creates and write.conversation.external_id is not None and not write.conversation.lineage,
            branches=write.creates and bool(write.conversation.lineage),
            message_count=min(len(write.messages), 2),
            fenced=fence is not None,
            releases=write.releases and fence is not None,
        )
        head = _created(write.conversation, now) if write.creates else _advanced(write, now)
        lease = () if fence is None else _place_of(fence)
        try:
            rows = await self._connections.fetch(sql, *head, *_message_arguments(write.messages, now), *lease)
        except asyncpg.UniqueViolationError as error:
            raise HeadMoved from error
        moved, held = rows[0]
        if not held:
            raise LeaseLost
        if not moved:
            raise HeadMoved

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        doomed = await self.get(tenant=tenant, conversation_id=conversation_id)
        if doomed is None:
            return False
        root, here = doomed.root, (doomed.root, doomed.id)
        async with self._connections.transaction() as connection:
            # Locked first, so that no branch can begin from it while its family is looked at.
            if not await connection.fetch(f"{SQL.by_id} FOR UPDATE", *here, tenant):
                return False
            family = await connection.fetch(f"{SQL.family} ORDER BY id FOR UPDATE", root, f'%"{doomed.id}"%')
            plan = erasure(doomed.id, {member: lineage_of(lineage) for member, lineage in family})
            await connection.execute(SQL.erase_messages, *here, plan.kept_through)
            if plan.heir is not None:
                await connection.execute(SQL.hand_over_messages, *here, plan.heir)
            await connection.execute(postgres_search.ERASE, *here, plan.kept_through)
            if plan.heir is not None:
                prefix = scope_prefix(root, plan.heir)
                await connection.execute(postgres_search.HAND_OVER, *here, plan.heir, prefix)
            for member, lineage in plan.lineages.items():
                await connection.execute(SQL.change_lineage, root, member, lineage_json(lineage))
            for statement in (
                SQL.erase_conversation,
                SQL.erase_external_ids,
                SQL.erase_leases,
                SQL.erase_chunks,
                SQL.hand_over_chunks,
            ):
                await connection.execute(statement, *here)
        return True

    async def chunks(
        self, *, tenant: str, root: str, path: Sequence[tuple[str, int]] = (), links: Sequence[bytes] = ()
    ) -> list[Chunk]:
        if not path and not links:
            return []
        sql = statements.chunks_sql(on_path=bool(path), at_links=bool(links))
        arguments: list[Any] = [root]
        if path:
            arguments += [[place for place, _ in path], [upto_seq for _, upto_seq in path]]
        if links:
            arguments.append(links)
        return [chunk_of(row) for row in await self._connections.fetch(sql, *arguments)]

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        rows = await self._connections.fetch(
            statements.ADD_CHUNK,
            root,
            tenant,
            bool(chunk.folds),
            *chunk_values(chunk, chunk.created_at),
            *_place_of(fence),
        )
        if not rows[0][0]:
            raise LeaseLost

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        rows = await self._connections.fetch(statements.CLAIM, root, key, holder, timedelta(seconds=seconds))
        return Lease(root, key, holder, rows[0][0]) if rows else None

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        rows = await self._connections.fetch(
            statements.RENEW,
            timedelta(seconds=seconds),
            [lease.root for lease in leases],
            [lease.key for lease in leases],
            [lease.holder for lease in leases],
            [lease.token for lease in leases],
        )
        renewed = {tuple(row) for row in rows}
        return [lease for lease in leases if (lease.root, lease.key, lease.token) not in renewed]

    async def release_lease(self, lease: Lease) -> None:
        await self._connections.fetch(SQL.release, *_place_of(lease))

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        return {model: orjson.loads(facts) for model, facts in await self._connections.fetch(SQL.facts)}

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        await self._connections.fetch(statements.LEARN, model, as_json(facts))


def _end_to_end(links: Sequence[bytes]) -> bytes:
    return b"".join(deepest_first(links))


def _created(new: Conversation, now: datetime) -> tuple[Any, ...]:
    """The conversation's columns and, of a branch, its ancestors, its parent and how far it shares that."""
    columns = (
        new.id,
        new.root,
        new.tenant,
        new.head_seq,
        new.head_link,
        new.head_skeleton,
        new.head_tokens_total,
        new.answered,
        new.encoding,
        lineage_json(new.lineage),
        new.external_id,
        new.mode,
        new.chunk_count,
        as_json(new.state),
        as_json(new.metadata),
        new.created_at or now,
        now,
    )
    if not new.lineage:
        return columns
    return (*columns, [ancestor for ancestor, _ in new.lineage], *new.lineage[-1])


def _advanced(write: Append, now: datetime) -> tuple[Any, ...]:
    after = write.conversation
    return (
        after.root,
        after.id,
        after.tenant,
        write.after_seq,
        after.head_seq,
        after.head_link,
        after.head_skeleton,
        after.head_tokens_total,
        after.answered,
        after.mode,
        after.chunk_count,
        as_json(after.state),
        now,
    )


def _message_arguments(messages: Sequence[LogMessage], now: datetime) -> Sequence[Any]:
    """Nothing, the columns of one message, or an array for each column."""
    if not messages:
        return ()
    rows = [
        (
            message.seq,
            message.message.raw.decode(),
            message.link,
            message.skeleton,
            message.in_skeleton,
            message.tokens,
            message.tokens_total,
            message.answered,
            message.incomplete,
            message.created_at or now,
            as_optional_json(message.meta),
        )
        for message in messages
    ]
    return rows[0] if len(rows) == 1 else [list(column) for column in zip(*rows, strict=True)]
