"""Conversations in PostgreSQL, on the bare driver. Each step of a turn is one statement and one round trip.

Works behind a pooler in transaction mode: no session state, no LISTEN, no session locks. Leases and claims of request
keys run on the database's clock, which all processes share.

What is erased is in no row and no index any more; the server's files keep dead rows until VACUUM has been there, its
write-ahead log and backups for as long as they are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import asyncpg
import orjson

from app.conversation.identity import root_of_conversation
from app.conversation.messages import Anchor, Chunk, ClientVersion, Conversation, LogMessage
from app.errors import StoreUnavailable
from app.store.contract import (
    NEAR_LINKS,
    WINDOW_LINKS,
    Append,
    Found,
    FoundAnywhere,
    Lease,
    LeaseLost,
    Match,
    StoreInfo,
)
from app.store.lineage import (
    deepest_first,
    expected_count,
    own_from,
    placed,
    ranges_within,
    run_of,
    stretches,
    stretches_of,
)
from app.store.postgres import search_index, statements
from app.store.postgres.appends import Appends, place_of
from app.store.postgres.pool import Connections, PostgresOptions
from app.store.postgres.statements import SQL
from app.store.search.index_terms import (
    keys_of_messages,
    keys_of_terms,
    portions,
    scope_of,
    scope_prefix,
    score,
    tenant_scope_of,
)
from app.store.sql import chunk_transactions, erasure_transactions
from app.store.sql.rows import (
    MESSAGE_COLUMNS,
    anchor_values,
    as_json,
    chunk_of,
    conversation_of,
    log_message_of,
    version_of,
)
from app.store.sql.schema import SCHEMA_VERSION
from app.store.sql.side_tables import Desk
from app.store.sql.transactions import POSTGRES, Rows, Script

Result = TypeVar("Result")

_WORDS: Final = search_index.PostgresWords()
_MESSAGE: Final = len(MESSAGE_COLUMNS)


class PostgresStore(Desk):
    """`Store` on a PostgreSQL database, whose schema must be up to date when it is opened."""

    searches_all = True
    due = "now() + make_interval(secs => {}::float8)"

    def __init__(self, dsn: str, *, clock: Callable[[], datetime], options: PostgresOptions | None = None) -> None:
        super().__init__(POSTGRES, clock=clock)
        self._connections = Connections(dsn, options or PostgresOptions())
        self._appends = Appends(self._connections)

    async def open(self) -> None:
        await self._connections.open()
        version = (await self.check()).schema_version
        if version != SCHEMA_VERSION:
            await self.close()
            raise StoreUnavailable(
                f"The database's schema is {version!r}, expected {SCHEMA_VERSION!r}.", hint="Run `concertina migrate`."
            )
        await self._connections.look_for_pooler()

    async def close(self) -> None:
        await self._appends.close()
        await self._connections.close()

    def _due(self, after_seconds: float = 0) -> float:
        return float(after_seconds)

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

    async def versions(self, conversation: Conversation, *, until_seq: int | None = None) -> list[ClientVersion]:
        until = conversation.head_seq if until_seq is None else until_seq
        rows = await self._connections.fetch(
            statements.READ_VERSIONS,
            conversation.root,
            [place for place, _ in conversation.path],
            [min(upto_seq, until) for _, upto_seq in conversation.path],
        )
        return [version_of(row) for row in rows]

    async def keep_anchors(self, anchors: Sequence[Anchor]) -> None:
        columns = [list(column) for column in zip(*map(anchor_values, anchors), strict=True)]
        await self._connections.fetch(statements.KEEP_ANCHORS, *columns, self._clock())

    async def find_anchors(self, digests: Sequence[bytes]) -> list[Anchor]:
        return [Anchor(*row) for row in await self._connections.fetch(statements.FIND_ANCHORS, list(digests))]

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        kept = placed(conversation.path, entries)
        keys = await asyncio.to_thread(keys_of_messages, [entry for _, entry in kept])
        for part in portions(keys):
            await self._index(conversation, kept[part], keys[part])

    async def _index(
        self, conversation: Conversation, kept: Sequence[tuple[str, LogMessage]], keys: Sequence[Sequence[int]]
    ) -> None:
        root, tenant = conversation.root, conversation.tenant
        prefixes = {place: scope_prefix(root, place) for place, _ in kept}
        async with self._connections.transaction() as connection:
            rows = await connection.fetch(
                search_index.INDEX,
                root,
                tenant,
                [place for place, _ in kept],
                [entry.seq for _, entry in kept],
                [entry.link for _, entry in kept],
                [search_index.array_text(prefixes[place], terms) for (place, _), terms in zip(kept, keys, strict=True)],
            )
            terms_at = {entry.seq: terms for (_, entry), terms in zip(kept, keys, strict=True)}
            terms_of: dict[str, set[int]] = {}
            for place, seq, redacted in rows:
                if terms_at[seq] and not redacted:
                    terms_of.setdefault(place, set()).update(terms_at[seq])
            await _post(connection, tenant, root, terms_of)
            start, end = run_of([entry for _, entry in kept])
            if {seq for _, seq, _ in rows}.issuperset(range(start, end)):
                await connection.execute(search_index.MOVE_ON, root, conversation.id, tenant, start, end)

    async def forget_index(self) -> None:
        await self._connections.fetch(search_index.FORGET)
        while await self._connections.fetch(search_index.FORGET_WATERMARKS):
            pass

    async def scrub(self) -> None:
        """Nothing: `VACUUM FULL` locks whole tables, which is for the operator to decide."""

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        wanted = stretches(conversation.path, max(from_seq, 0), before_seq)
        if not wanted or not terms:
            return []
        rows = await self._connections.fetch(
            search_index.SEARCH,
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

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        keys = keys_of_terms(terms)
        rows = await self._connections.fetch(search_index.SEARCH_ALL, tenant_scope_of(tenant), tenant, keys, limit)
        found = [conversation_of(row[1:]) for row in rows]
        best = await self._connections.fetch(
            search_index.BEST,
            [one.root for one in found],
            [one.id for one in found],
            [scope_prefix(one.root, one.id) for one in found],
            [own_from(one) for one in found],
            [one.head_seq + 1 for one in found],
            keys,
        )
        messages = {row[0]: log_message_of(row[1:]) for row in best}
        return [
            FoundAnywhere(conversation, messages[place], score(rows[place - 1][0]))
            for place, conversation in enumerate(found, start=1)
            if place in messages
        ]

    def append(self, write: Append) -> asyncio.Future[None]:
        return self._appends.append(write, self._clock())

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        doomed = await self.get(tenant=tenant, conversation_id=conversation_id)
        if doomed is None:
            return False
        return await self._run(erasure_transactions.delete(POSTGRES, _WORDS, doomed), alone_in=doomed.root)

    async def describe(self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        found = await self.get(tenant=tenant, conversation_id=conversation_id)
        if found is None:
            return None
        await self._connections.fetch(statements.DESCRIBE, found.root, found.id, tenant, as_json(metadata))
        return await self.get(tenant=tenant, conversation_id=conversation_id)

    async def mark(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        await self._run(erasure_transactions.mark(POSTGRES, conversation, marks))

    async def redact(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Chunk]:
        script = erasure_transactions.redact(POSTGRES, _WORDS, conversation, entries)
        return (await self._run(script, alone_in=conversation.root)).chunks

    async def rewrite(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        chunks: Sequence[Chunk] = (),
        versions: Sequence[ClientVersion] = (),
    ) -> None:
        await self._run(erasure_transactions.rewrite(POSTGRES, conversation, entries, chunks, versions))

    async def revise(self, *, tenant: str, root: str, chunk: Chunk) -> None:
        await self._run(chunk_transactions.revise(POSTGRES, tenant, root, chunk))

    async def revisions(self, *, tenant: str, root: str, chunk_id: str) -> list[Chunk]:
        return await self._run(chunk_transactions.revisions(POSTGRES, tenant, root, chunk_id))

    async def delete_chunk(self, *, tenant: str, root: str, chunk_id: str) -> bool:
        return await self._run(chunk_transactions.delete(POSTGRES, tenant, root, chunk_id))

    async def purge_chunks(self, *, made_before: datetime) -> int:
        return await chunk_transactions.purge(POSTGRES, self._ask, self._delete_strays, made_before)

    async def _delete_strays(self, places: Sequence[chunk_transactions.Place]) -> int:
        return await self._run(chunk_transactions.delete_strays(POSTGRES, places))

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
        if not path and not links:
            return []
        begins = bool(path) and after is not None
        sql = statements.chunks_sql(on_path=bool(path), begins=begins, at_links=bool(links), texts=texts)
        arguments: list[Any] = [root, tenant]
        if path:
            arguments += [[place for place, _ in path], [upto_seq for _, upto_seq in path]]
        if begins:
            arguments.append(after)
        if links:
            arguments.append(links)
        return [chunk_of(row) for row in await self._connections.fetch(sql, *arguments)]

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        await self._run(_fenced(fence, chunk_transactions.add(POSTGRES, tenant, root, chunk)))

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
        await self._connections.fetch(SQL.release, *place_of(lease))

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        return {model: orjson.loads(facts) for model, facts in await self._connections.fetch(SQL.facts)}

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        await self._connections.fetch(statements.LEARN, model, as_json(facts))

    async def _ask(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._connections.fetch(sql, *arguments)

    async def _tell(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        return await self._connections.fetch(sql, *arguments)

    async def _run(self, script: Script[Result], *, alone_in: str | None = None) -> Result:
        """What a script comes to, in one transaction.

        Args:
            alone_in: a root of whose family no other such script is to lock rows meanwhile: two that lock them in
                different orders would wait for each other.
        """
        async with self._connections.transaction() as connection:
            if alone_in is not None:
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", alone_in)
            rows: Rows | None = None
            while True:
                try:
                    sql, arguments = next(script) if rows is None else script.send(rows)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                rows = await connection.fetch(sql, *arguments)


async def _post(connection: Any, tenant: str, root: str, terms_of: Mapping[str, set[int]]) -> None:
    """Make conversations findable among all of a tenant's by these terms."""
    if not terms_of:
        return
    tenant_scope, places = tenant_scope_of(tenant), sorted(terms_of)
    await connection.execute(search_index.POST, tenant_scope, *search_index.postings_of(root, terms_of))
    scopes = [scope_of(root, place) for place in places]
    await connection.execute(search_index.POST_SCOPES, tenant_scope, root, scopes, places)


def _fenced(fence: Lease, script: Script[Result]) -> Script[Result]:
    """A script that begins only while a lease is held."""
    (held,) = yield statements.HELD, place_of(fence)
    if not held[0]:
        raise LeaseLost
    return (yield from script)


def _end_to_end(links: Sequence[bytes]) -> bytes:
    return b"".join(deepest_first(links))
