"""What only PostgreSQL can get wrong: restarts, hanging and unreachable servers, poolers, plans."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import asyncpg
import pytest

from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from app.store.postgres.backend import PostgresStore
from app.store.postgres.statements import build_link_lookup_query
from app.store.store_factory import create_store
from tests.postgres import Databases, dsn
from tests.store.example_logs import Clock, begin, bodies, fresh_tenant, go_on, grown, lease_on, links, log_of

CHAT = ["user hi", "assistant hello"]


@pytest.fixture
async def store(postgres: PostgresStore) -> PostgresStore:
    return postgres


async def test_after_a_restart_the_next_call_works_again(store: PostgresStore, databases: Databases) -> None:
    if databases.server is None:
        pytest.skip("a server that is not ours is not restarted")
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await asyncio.gather(*(store.check() for _ in range(8)))
    await asyncio.to_thread(databases.server.stop)
    for _ in range(3):
        with pytest.raises(StoreUnavailable) as refused:
            await go_on(store, conversation, log, ["user anybody?"])
        assert not isinstance(refused.value.__cause__, TimeoutError), "it was waited for"
    await asyncio.to_thread(databases.server.start)
    conversation, _ = await go_on(store, conversation, log, ["user back"])
    assert bodies(await store.read_log(conversation, 0, 9)) == ["hi", "hello", "back"]


async def test_connections_that_were_cut_are_replaced(store: PostgresStore, postgres_url: str) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await asyncio.gather(*(store.check() for _ in range(8)))
    other = await asyncpg.connect(dsn(postgres_url))
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    await other.close()
    failures = 0
    for _ in range(20):
        try:
            assert links(await store.read_log(conversation, 0, 9)) == links(log)
        except StoreUnavailable:
            failures += 1
    assert failures < 10
    assert links(await store.read_log(conversation, 0, 9)) == links(log)


@pytest.mark.parametrize("url", ["postgresql+asyncpg://u:secret@127.0.0.1:1/x", "postgresql:///x?host=/nowhere/at/all"])
async def test_an_unreachable_server_is_a_quick_clear_error(url: str, clock: Clock) -> None:
    store = create_store(url, clock=clock)
    with pytest.raises(StoreUnavailable) as refused:
        await store.open()
    assert not isinstance(refused.value.__cause__, TimeoutError), "it was waited for"
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is not None
    await store.close()


async def test_a_server_that_never_answers_is_given_up(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = create_store(f"postgresql://u@127.0.0.1:{port}/x?sslmode=disable", clock=clock, timeout_seconds=0.2)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.open(), 2)
        await store.close()


async def test_a_statement_that_hangs_is_given_up_and_the_pool_stays_whole(postgres_url: str, clock: Clock) -> None:
    store = create_store(postgres_url, clock=clock, timeout_seconds=0.3, pool_size=2)
    await store.open()
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    rival = await asyncpg.connect(dsn(postgres_url))
    await rival.execute("BEGIN")
    await rival.fetch("SELECT FROM conversations WHERE id = $1 FOR UPDATE", conversation.id)
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(go_on(store, conversation, log, ["user blocked"]), 3)
    await rival.execute("ROLLBACK")
    await rival.close()
    await go_on(store, conversation, log, ["user free"])
    assert len(await store.read_log(conversation, 0, 9)) == 2
    await store.close()


async def test_a_database_that_comes_up_later_is_used(postgres_url: str, clock: Clock) -> None:
    store = create_store(postgres_url.replace("/concertina_test", "/not_there_yet_concertina_test"), clock=clock)
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.check()
    await store.close()


async def test_a_database_without_a_schema_does_not_open(empty_postgres_url: str, clock: Clock) -> None:
    store = create_store(empty_postgres_url, clock=clock)
    with pytest.raises(StoreUnavailable, match="migrate"):
        await store.open()
    await store.close()


async def test_no_prepared_statement_is_kept_behind_a_pooler(postgres_url: str, clock: Clock) -> None:
    store = create_store(postgres_url, clock=clock, statement_cache_size=0, pool_size=1)
    await store.open()
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.find_link_matches(tenant=conversation.tenant, root=conversation.root, links=links(log))
    assert isinstance(store, PostgresStore)
    rows = await store._connections.fetch("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
    assert rows[0][0] <= 1, "at most the one that asks"
    await store.close()


async def test_a_turn_under_a_lease_is_one_statement_for_each_step(postgres_url: str, clock: Clock) -> None:
    store = create_store(postgres_url, clock=clock, pool_size=1)
    assert isinstance(store, PostgresStore)
    await store.open()
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    # Once for each connection the driver asks what an array of bytes is.
    await store.find_link_matches(tenant=conversation.tenant, root=conversation.root, links=links(log))
    seen: list[str] = []
    pool = store._connections._require_open_pool()
    connection = await pool.acquire()
    connection.add_query_logger(lambda record: seen.append(record.query))
    await pool.release(connection)

    fence = await lease_on(store, conversation.root)
    found = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert found is not None
    asked = log_of(found.tenant, ["user more"], after=log[-1])
    await store.append(LogAppend(grown(found, asked), found.head_seq, asked, fence=fence))
    answered = log_of(found.tenant, ["assistant yes"], after=asked[-1])
    await store.append(LogAppend(grown(found, answered), asked[-1].seq, answered, fence=fence, releases_lease=True))
    assert len(seen) == 4
    assert await store.renew_leases([fence], 60) == [fence]
    await store.close()


async def test_links_are_looked_up_one_by_one_whatever_the_statistics_say(store: PostgresStore) -> None:
    tenant = fresh_tenant()
    await begin(store, tenant, [f"{role} {number}" for number in range(500) for role in ("user", "assistant")])
    pool = store._connections._require_open_pool()
    connection = await pool.acquire()
    for analyze in (False, True):
        if analyze:
            await connection.execute("ANALYZE messages, conversations")
        for within in (False, True):
            types = ["text", "text", *(["text"] if within else []), "bytea", "bytea", "bytea"]
            name = f"find_{analyze}_{within}"
            await connection.execute(
                f"PREPARE {name} ({', '.join(types)}) AS {build_link_lookup_query(within=within, near=True)}"
            )
            values = ", ".join("''" if kind == "bytea" else "'x'" for kind in types)
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name} ({values})"))
            assert "Seq Scan" not in plan, plan
            assert "messages_pkey" not in plan, plan
            assert "link = u" in plan
    await pool.release(connection)


async def test_a_socket_directory_in_the_url_is_used(postgres_url: str, clock: Clock) -> None:
    if "host=" not in postgres_url:
        pytest.skip("this server is not on a socket")
    directory = Path(postgres_url.partition("host=")[2])
    assert (directory / ".s.PGSQL.5432").exists()
    store = create_store(postgres_url, clock=clock)
    await store.open()
    assert (await store.check()).backend == "postgresql"
    await store.close()
