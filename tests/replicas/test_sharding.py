"""Each statement of a turn is one shard's: run for real on databases that have a part of the tables and of the rows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace
from sqlalchemy import MetaData, Table, UniqueConstraint

from app.conversation.conversation_types import StoredCompletion
from app.store.contract.conversations import CompletionQuery, ConversationQuery, LogAppend
from app.store.postgres.backend import PostgresStore
from tests.migrations.test_migrations import with_connection
from tests.postgres import Databases, dsn
from tests.replicas.sharding import Plan, Router, Wide
from tests.store.example_logs import (
    NOON,
    Clock,
    begin,
    branch_off,
    chunk_over,
    conversation_of,
    fresh_tenant,
    go_on,
    grown,
    lease_on,
    links,
    log_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "scaling.md"
SHARDS = 2
FAMILIES = 8
"""Enough for each shard to have some."""
CHAT = ["user hi", "assistant hello", "user how are you?", "assistant well"]


@pytest.fixture(scope="module")
def tables(databases: Databases, migrated_template: str) -> Mapping[str, Table]:
    metadata = MetaData()
    with_connection(databases.url(migrated_template), metadata.reflect)
    return metadata.tables


@pytest.fixture(scope="module")
def places(databases: Databases, migrated_template: str, tables: Mapping[str, Table]) -> Iterator[list[str]]:
    """Shards, and last the database of everything that is not sharded by root."""
    plan = Plan()
    sharded = {table for table, column in plan.columns.items() if column == "root"}
    names = [databases.create(template=migrated_template) for _ in range(SHARDS + 1)]
    for number, name in enumerate(names):
        gone = tables.keys() - {"alembic_version"} - sharded if number < SHARDS else sharded
        asyncio.run(_drop(dsn(databases.url(name)), gone))
    yield [dsn(databases.url(name)) for name in names]
    for name in names:
        databases.drop(name)


async def _drop(address: str, tables: set[str]) -> None:
    connection = await asyncpg.connect(address)
    await connection.execute("; ".join(f"DROP TABLE {table}" for table in sorted(tables)))
    await connection.close()


@pytest.fixture
async def router(places: list[str]) -> AsyncIterator[Router]:
    made = Router(places[:-1], places[-1])
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def store(router: Router) -> PostgresStore:
    made = PostgresStore("postgresql:///nowhere", clock=Clock())
    made._connections = made._appends._connections = router  # type: ignore[assignment]  # all that is asked of it
    return made


def test_the_plan_names_every_table_and_a_column_that_leads_its_keys(tables: Mapping[str, Table]) -> None:
    """Citus takes no unique index without the distribution column, and no sequence or foreign key is there to span."""
    plan = Plan()
    assert plan.columns.keys() | plan.references == tables.keys()
    for name, column in plan.columns.items():
        table = tables[name]
        assert next(iter(table.primary_key.columns)).name == column
        assert all(column in one.columns for one in table.indexes if one.unique)
        assert all(column in one.columns for one in table.constraints if isinstance(one, UniqueConstraint))
    for table in tables.values():
        assert not table.foreign_keys
        assert all(column.autoincrement in (False, "auto") and column.identity is None for column in table.columns)
        assert all("nextval" not in str(column.server_default) for column in table.columns)


def test_tables_of_a_root_lie_together_and_so_do_those_of_a_tenant() -> None:
    plan = Plan()
    for column in set(plan.columns.values()):
        assert len({plan.groups[table] for table, theirs in plan.columns.items() if theirs == column}) == 1


async def test_every_statement_of_a_turn_runs_on_one_shard(store: PostgresStore, router: Router) -> None:
    """In each mode: begun, found, continued under a lease, branched, summarized, indexed, searched."""
    for _ in range(FAMILIES):
        tenant = fresh_tenant()
        conversation, log = await begin(store, tenant, CHAT)
        root = conversation.root
        found = await store.find_link_matches(tenant=tenant, root=root, links=links(log))
        assert found[0].conversation.id == conversation.id
        lease = await lease_on(store, root, conversation.id)
        assert await store.renew_leases([lease], 30) == []
        more = log_of(tenant, ["user and?", "assistant so"], after=log[-1])
        after = grown(conversation, more)
        await store.append(LogAppend(after, conversation.head_seq, more, fence=lease, releases_lease=True))
        conversation, log = after, [*log, *more]
        assert await store.find_conversation(tenant=tenant, conversation_id=conversation.id) is not None
        assert links(await store.read_log(conversation, 0, 99)) == links(log)
        branch, whole = await branch_off(store, conversation, log, 1, ["user instead", "assistant as you like"])
        assert links(await store.read_log(branch, 0, 99)) == links(whole)
        within = await store.find_link_matches(
            tenant=tenant, root=root, links=links(whole), named_conversation_id=branch.id
        )
        assert within[0].conversation.id == branch.id
        lease = await lease_on(store, root, "range")
        chunk = chunk_over(conversation, log, 0, 2)
        await store.add_summary(tenant=tenant, root=root, summary=chunk, fence=lease)
        await store.release_lease(lease)
        shared = await store.find_summaries(tenant=tenant, root=root, path=branch.lineage_with_self, links=links(whole))
        assert [one.id for one in shared] == [chunk.id]
        await store.index_messages(conversation, log)
        told = await store.search_log(conversation, terms=["hello"], from_seq=0, before_seq=9, limit=3)
        assert "hello" in told[0].message.message.text
        await store.replace_marks(conversation, {"pins": []})
        await store.revise_summary(tenant=tenant, root=root, summary=replace(chunk, text="Better.", revision=2))
        assert [one.text for one in await store.read_summary_revisions(tenant=tenant, root=root, summary_id=chunk.id)][
            1:
        ] == ["Better."]
        assert await store.delete_summary(tenant=tenant, root=root, summary_id=chunk.id)
        conversation, log = await go_on(store, conversation, log, ["user bye", "assistant bye"])
    places = {shard for _, shard in router.statements}
    assert places == {None, *range(SHARDS)}


async def test_a_turn_needs_no_more_than_one_place_of_its_tenant_beside(store: PostgresStore) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT)
    claim = {"tenant": tenant, "key": "k", "holder": "h"}
    assert (await store.claim_idempotency_key(**claim, digest=b"d", seconds=9, kept_seconds=9)).state == "claimed"
    await store.complete_idempotency_key(**claim, conversation_id=conversation.id, seq=1)
    assert (await store.claim_idempotency_key(**claim, digest=b"d", seconds=9, kept_seconds=9)).state == "done"
    completion = StoredCompletion("chatcmpl-1", tenant, conversation.root, conversation.id, 1, "m", NOON)
    await store.save_completion(completion)
    assert await store.find_completion(tenant=tenant, completion_id=completion.id) is not None
    assert len(await store.list_completions(tenant=tenant, query=CompletionQuery(limit=9))) == 1
    assert await store.find_api_key("digest") is None
    await store.merge_model_facts(model="m", facts={"window": 1})
    assert await store.read_model_facts() == {"m": {"window": 1}}


Wideness = Callable[[PostgresStore], Awaitable[object]]


async def _named(store: PostgresStore) -> object:
    return await begin(store, fresh_tenant(), CHAT, external_id="chat")


async def _by_name(store: PostgresStore) -> object:
    return await store.find_conversation(tenant="t", conversation_id="chat")


async def _point(store: PostgresStore) -> None:
    tenant = fresh_tenant()
    await store.assign_external_id(
        tenant=tenant, external_id="x", conversation=conversation_of(tenant, log_of(tenant, CHAT))
    )


async def _listed(store: PostgresStore) -> object:
    return await store.list_conversations(tenant="t", query=ConversationQuery(limit=9))


async def _search_all(store: PostgresStore) -> object:
    return await store.search_tenant(tenant="t", terms=["hello"], limit=3)


async def _deleted(store: PostgresStore) -> object:
    conversation, _ = await begin(store, tenant := fresh_tenant(), CHAT)
    return await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)


async def _redacted(store: PostgresStore) -> object:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    return await store.redact_messages(conversation, [log[0]])


async def _forgotten(store: PostgresStore) -> None:
    await store.clear_search_index()


async def _purged_keys(store: PostgresStore) -> object:
    return await store.purge_idempotency_keys()


async def _renewed(store: PostgresStore) -> object:
    leases = [await lease_on(store, conversation_of(one := fresh_tenant(), log_of(one, CHAT)).root) for _ in range(9)]
    return await store.renew_leases(leases, 9)


WIDE: dict[str, Wideness] = {
    "append (names)": _named,
    "get (by a client's id)": _by_name,
    "point": _point,
    "conversations": _listed,
    "search_all": _search_all,
    "delete": _deleted,
    "redact": _redacted,
    "forget_index": _forgotten,
    "purge_requests": _purged_keys,
    "renew_leases": _renewed,
}


@pytest.mark.parametrize("name", WIDE)
async def test_what_is_not_one_shards_is_known_and_documented(name: str, store: PostgresStore) -> None:
    with pytest.raises(Wide):
        await WIDE[name](store)
    assert f"| `{name}` |" in DOCS.read_text()


def test_no_more_is_documented_as_wide_than_is() -> None:
    section = DOCS.read_text().partition("## Operations on several shards")[2]
    rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert set(rows) == WIDE.keys()
