"""Behind PgBouncer in transaction mode, or what stands in for it: every promise of a store, gateways, and a word to
who forgot the setting."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from app.errors import StoreUnavailable
from app.store.contract.store import Store
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.faults.checking import Checking
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.faults.servers import Database
from tests.replicas.fleet import Fleet, fleet, fresh_name, history_of
from tests.replicas.pgbouncer import KEEPS_STATEMENTS, binary, pooled, version
from tests.store.example_logs import Clock, begin, fresh_tenant, go_on
from tests.support.gateway import user

pytestmark = pytest.mark.timeout(180)

STORE_TESTS: Final = Path(__file__).parents[1] / "store"
CONTRACT: Final = (
    *sorted(f"contract.{file.parent.name}.{file.stem}" for file in (STORE_TESTS / "contract").glob("*/test_*.py")),
    "test_leases",
)
"""Modules below `tests.store`."""
SERVED: Final = {"store", "clock"}
"""Fixtures that tests of the contract may ask for here."""
POOL: Final = 2
CLIENTS_OF_GATEWAY: Final = 10
TURNS: Final = 60
MANNERS: Final = Manners(talks=20, turns=(3, 8), words=(10, 40), pause_seconds=0.05, hangs_up=0.05, reads_slowly=0.0)
WINDOW: Final = 2048
FILLED: Final = 24
"""Turns that do not fit into it."""


@pytest.fixture(scope="module")
def pooled_url(server: Database) -> Iterator[str]:
    """A database that was migrated through the pooler."""
    with pooled(server.folder, pool_size=POOL) as port:
        url = f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
        prepare_database(url, auto_migrate=True)
        yield url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(pooled_url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = create_store(pooled_url, clock=clock, statement_cache_size=0)
    await opened.open()
    yield opened
    await opened.close()


def contract() -> dict[str, Callable[..., Any]]:
    """The tests of what every store does, by a name that tells where they are from."""
    found = {}
    for name in CONTRACT:
        for test, function in vars(importlib.import_module(f"tests.store.{name}")).items():
            if not test.startswith("test_"):
                continue
            given = {argument for mark in getattr(function, "pytestmark", ()) for argument in _given_by(mark)}
            if "store" in (asked := set(inspect.signature(function).parameters)) and asked - given <= SERVED:
                found[f"{name.rpartition('.')[2]}: {test.removeprefix('test_')}"] = function
    return found


def _given_by(mark: Any) -> list[str]:
    if mark.name != "parametrize":
        return []
    names = mark.args[0]
    return [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)


globals().update(contract())


def test_all_of_the_contract_is_held() -> None:
    assert len(contract()) > 100


async def test_gateways_keep_their_promises_with_fewer_connections_than_clients(
    server: Database, tmp_path: Path
) -> None:
    database = {"statement_cache_size": 0, "pool_size": CLIENTS_OF_GATEWAY}
    async with fleet(tmp_path, count=2, database=database) as made:
        assert made.stage.database is not None
        assert made.stage.to_database is not None
        with pooled(made.stage.database.folder, pool_size=POOL) as port:
            made.stage.to_database.targets[:] = [("127.0.0.1", port)]
            made.stage.to_database.cut()
            before = made.stage.to_database.connections
            await under_load(made, tmp_path)
            await by_hand(made)
            assert made.stage.to_database.connections - before > POOL
            served = await made.rows("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
            assert served[0][0] <= POOL + 1, "and the one that asks"
        assert (await made.stage.verify()).faults == []


async def under_load(made: Fleet, folder: Path) -> None:
    """Appends, resends, keys, streams, hang-ups and compactions at once: nothing is lost, doubled or stuck."""
    journal = Journal(folder / "journal.jsonl")
    load = Load(made.stage.base_url, journal, seed=1, manners=MANNERS)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(load.run())
        async with asyncio.timeout(60):
            while load.figures.acknowledged < TURNS:  # noqa: ASYNC110 - it is counted elsewhere
                await asyncio.sleep(0.05)
        load.stop()
        await running
    journal.close()
    async with aiohttp.ClientSession() as session:
        checking = Checking(made.stage.base_url, session)
        await checking.all(journal.talks)
        await checking.settle(journal.talks[-MANNERS.talks :], seconds=20)
    assert checking.verdict.is_clean, checking.verdict
    assert not any(outcome.startswith("5") for outcome in journal.outcomes), journal.outcomes


async def by_hand(made: Fleet) -> None:
    """A long history is summarized, searched, and erased."""
    name = fresh_name()
    for message in history_of(FILLED)[::2]:
        told = await made.say(None, [message], conversation=name)
    assert told["context_status"] == "summarized"
    found = await made.call(0, "GET", f"/conversations/{name}/search?q=note3x7")
    assert "note3x7" in str(found["data"][0])
    items = (await made.call(1, "GET", f"/conversations/{name}/items?order=asc&limit=100"))["data"]
    (item,) = (one["id"] for one in items if one["type"] == "message" and "note3x7" in str(one["content"]))
    await made.call(0, "DELETE", f"/conversations/{name}/items/{item}?erase=true")
    found = await made.call(1, "GET", f"/conversations/{name}/search?q=note3x7")
    assert "note3x7" not in str(found["data"])
    await made.call(0, "DELETE", f"/conversations/{told['conversation_id']}")
    assert (await made.post(1, [user("Hi")], conversation=told["conversation_id"])).status_code == 404


async def test_whoever_forgets_the_setting_is_told_of_it(pooled_url: str, clock: Clock) -> None:
    store = create_store(pooled_url, clock=clock, statement_cache_size=256)
    await store.open()
    try:
        ends = await asyncio.gather(*(_talk(store) for _ in range(20)), return_exceptions=True)
    finally:
        await store.close()
    failed = [one for one in ends if one is not None]
    assert failed
    assert {type(one) for one in failed} == {StoreUnavailable}
    assert all("Set `database.statement_cache_size: 0`." in str(one) for one in failed)


async def test_a_pooler_that_keeps_prepared_statements_needs_no_setting(server: Database, clock: Clock) -> None:
    program = binary()
    if program is None or version(program) < KEEPS_STATEMENTS:
        pytest.skip("no PgBouncer here can keep prepared statements: 1.21 is the first that can")
    with pooled(server.folder, pool_size=POOL, max_prepared_statements=200) as port:
        url = f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
        await asyncio.to_thread(prepare_database, url, auto_migrate=True)
        store = create_store(url, clock=clock, statement_cache_size=100)
        await store.open()
        await asyncio.gather(*(_talk(store) for _ in range(20)))
        await store.close()


async def _talk(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), ["user hi", "assistant hello"])
    for _ in range(5):
        conversation, log = await go_on(store, conversation, log, ["user and?", "assistant so"])
        assert len(await store.read_log(conversation, 0, 99)) == conversation.head_seq + 1
