"""What stands in for PgBouncer keeps from its clients what a pooler may keep from them, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.faults.servers import Database
from tests.replicas.pgbouncer import stand_in
from tests.support.gateway import until


class Clients:
    """Connects them to the pooler."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._made: list[Any] = []

    async def new(self, **options: Any) -> Any:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self._port, user="anybody", database="postgres", statement_cache_size=0, **options
        )
        self._made.append(connection)
        return connection

    async def arrived(self) -> None:
        """What was sent before has reached the pooler: it handles what it is sent in order."""
        await self.new()

    def close(self) -> None:
        for connection in self._made:
            connection.terminate()


@asynccontextmanager
async def clients(server: Database, *, pool_size: int) -> AsyncIterator[Clients]:
    with stand_in(server.folder, pool_size=pool_size) as port:
        made = Clients(port)
        try:
            yield made
        finally:
            made.close()


async def process(client: Any) -> int:
    """The server process that answers now."""
    number: int = await client.fetchval("SELECT pg_backend_pid()")
    return number


async def test_the_next_transaction_is_on_another_connection(server: Database) -> None:
    async with clients(server, pool_size=3) as made:
        client = await made.new()
        seen = [await process(client) for _ in range(7)]
    assert len(set(seen)) == 3
    assert seen[3:] == seen[:-3]


async def test_a_transaction_stays_where_it_began(server: Database) -> None:
    async with clients(server, pool_size=3) as made:
        client, other = await made.new(), await made.new()
        async with client.transaction():
            seen = {await process(client) for _ in range(5)}
            elsewhere = {await process(other) for _ in range(5)}
    assert len(seen) == 1
    assert len(elsewhere) == 2
    assert not seen & elsewhere


async def test_a_named_statement_is_not_found_in_the_next_transaction(server: Database) -> None:
    async with clients(server, pool_size=2) as made:
        client = await made.new()
        statement = await client.prepare("SELECT 1", name="mine")
        await process(client)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await statement.fetchval()


async def test_what_a_session_is_told_stays_with_its_connection(server: Database) -> None:
    async with clients(server, pool_size=2) as made:
        client, other = await made.new(), await made.new()
        await client.execute("SET work_mem = '77MB'")
        assert await client.fetchval("SHOW work_mem") != "77MB"
        assert await other.fetchval("SHOW work_mem") == "77MB"


async def test_a_lock_of_a_session_is_held_for_whoever_has_its_connection(server: Database) -> None:
    async with clients(server, pool_size=2) as made:
        client = await made.new()
        taken = [await client.fetchval("SELECT pg_try_advisory_lock(7)") for _ in range(3)]
    assert taken == [True, False, True]


async def test_whoever_finds_no_connection_free_waits_for_its_turn(server: Database) -> None:
    order: list[str] = []

    async def ask(name: str, client: Any) -> None:
        await process(client)
        order.append(name)

    async with clients(server, pool_size=1) as made, asyncio.TaskGroup() as group:
        first, second, third = [await made.new() for _ in range(3)]
        transaction = first.transaction()
        await transaction.start()
        for name, client in (("third", third), ("second", second)):
            group.create_task(ask(name, client))
            await made.arrived()
        assert order == []
        order.append("first")
        await transaction.commit()
        await first.fetchval("SELECT 1")
    assert order == ["first", "third", "second"]


async def test_who_leaves_within_a_transaction_leaves_nothing_open(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        client, other = await made.new(), await made.new()
        await client.execute("CREATE TABLE left_behind (number int)")
        await client.execute("BEGIN; INSERT INTO left_behind VALUES (1); LOCK TABLE left_behind")
        before = await process(client)
        client.terminate()
        async with asyncio.timeout(10):
            assert await other.fetchval("SELECT count(*) FROM left_behind") == 0
            assert await process(other) != before
            await other.execute("DROP TABLE left_behind")


async def test_who_leaves_while_waiting_is_not_waited_for(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        client, other = await made.new(), await made.new()
        async with client.transaction():
            waiting = asyncio.create_task(process(other))
            await made.arrived()
            other.terminate()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(10):
            assert await process(client)


async def test_who_loses_its_connection_is_disconnected_and_others_go_on(server: Database) -> None:
    async with clients(server, pool_size=2) as made:
        client, other = await made.new(), await made.new()
        await client.execute("BEGIN")
        lost = await process(client)
        await server.rows(f"SELECT pg_terminate_backend({lost})")
        await until(client.is_closed)
        assert lost not in {await process(other) for _ in range(4)}


async def test_a_server_that_comes_back_is_found_again(server: Database) -> None:
    async with clients(server, pool_size=2) as made:
        client = await made.new()
        await process(client)
        server.crash()
        with pytest.raises(asyncpg.PostgresConnectionError):
            await process(client)
        with pytest.raises(asyncpg.PostgresConnectionError, match="cannot be reached"):
            await made.new()
        server.restart()
        assert await process(await made.new())


async def test_cancelling_reaches_the_connection_that_its_client_has(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        client, other = await made.new(), await made.new()
        asleep = asyncio.create_task(client.execute("SELECT pg_sleep(600)"))
        while not await server.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            pass
        asleep.cancel()
        await asyncio.gather(asleep, return_exceptions=True)
        async with asyncio.timeout(10):
            assert await process(other)


async def test_cancelling_that_comes_late_reaches_nobody_else(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        client, other = await made.new(), await made.new()
        for _ in range(40):
            late = client.execute("SELECT pg_sleep(0.01)", timeout=0.01)
            ends = await asyncio.gather(late, other.execute("SELECT pg_sleep(0.01)"), return_exceptions=True)
            assert ends[1] == "SELECT 1"


async def test_a_client_is_told_of_a_process_that_is_not_the_servers(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        client = await made.new()
        assert client.get_server_pid() != await process(client)


async def test_a_client_knows_the_server_as_if_it_was_connected_to_it(server: Database) -> None:
    direct = await asyncpg.connect(host=server.folder, user="postgres", database="postgres")
    async with clients(server, pool_size=1) as made:
        client = await made.new()
        assert client.get_server_version() == direct.get_server_version()
        assert client.get_settings().TimeZone == direct.get_settings().TimeZone
    await direct.close()


async def test_a_parameter_that_poolers_do_not_know_is_refused(server: Database) -> None:
    async with clients(server, pool_size=1) as made:
        await made.new(server_settings={"application_name": "known"})
        with pytest.raises(asyncpg.ProtocolViolationError, match="unsupported startup parameter: search_path"):
            await made.new(server_settings={"search_path": "elsewhere"})


async def test_what_the_server_says_of_a_database_is_passed_on(server: Database) -> None:
    with stand_in(server.folder, pool_size=2) as port, pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(host="127.0.0.1", port=port, user="anybody", database="nowhere")
