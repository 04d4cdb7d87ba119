"""Migrations: from empty to the tables of today, on filled databases, never backwards by surprise."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
from alembic.script import ScriptDirectory
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.conversation.api_keys import ApiKey
from app.conversation.conversation_types import StoredCompletion
from app.errors import StoreUnavailable
from app.store.database_url import parse_database_url
from app.store.sql.required_schema_version import SCHEMA_VERSION
from app.store.store_factory import create_store
from migrations import run, upgrading
from tests.postgres import Databases
from tests.store.example_logs import NOON, begin, chunk_over, fresh_tenant, lease_on, links

ROOT = Path(__file__).parents[2]
STEPS = [
    script.revision for script in reversed(list(ScriptDirectory.from_config(upgrading._config()).walk_revisions()))
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return str(request.getfixturevalue("empty_postgres_url"))


def with_connection(url: str, look: Callable[[Connection], Any]) -> Any:
    """What a look at a database through SQLAlchemy finds."""
    location = parse_database_url(url)
    if location.backend == "sqlite":
        engine = create_engine(f"sqlite:///{location.path}", poolclass=NullPool)
        with engine.connect() as connection:
            return look(connection)

    async def ask() -> Any:
        engine = create_async_engine(
            "postgresql+asyncpg://", poolclass=NullPool, async_creator=lambda: asyncpg.connect(location.dsn)
        )
        async with engine.connect() as connection:
            found = await connection.run_sync(look)
        await engine.dispose()
        return found

    return asyncio.run(ask())


def execute(url: str, sql: str) -> None:
    location = parse_database_url(url)
    if location.backend == "sqlite":
        connection = sqlite3.connect(location.path)
        with connection:
            connection.execute(sql)
        connection.close()
        return

    async def ask() -> None:
        connection = await asyncpg.connect(location.dsn)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(ask())


SCHEMA_QUERIES = {
    "sqlite": "SELECT name, sql FROM sqlite_master ORDER BY 1",
    "postgresql": """
        SELECT c.relname, c.relkind::text, c.reloptions::text, pg_get_indexdef(i.indexrelid), i.indisprimary,
            (SELECT array_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
                    pg_get_expr(d.adbin, d.adrelid)) ORDER BY attnum)::text
             FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE attrelid = c.oid AND attnum > 0)
        FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE relnamespace = 'public'::regnamespace ORDER BY 1""",
}


def read_schema(url: str) -> list[list[str]]:
    """All tables and indexes, but for the spaces in their texts."""
    query = SCHEMA_QUERIES[parse_database_url(url).backend]
    rows = with_connection(url, lambda connection: connection.exec_driver_sql(query).all())
    return [[re.sub(r"\s+", "", str(value)) for value in row] for row in rows]


@pytest.fixture
def schema_of_today(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> list[list[str]]:
    """What `migrations/sqlite.sql` or `migrations/postgresql.sql` makes of an empty database."""
    if parse_database_url(url).backend == "sqlite":
        made_at_once = f"sqlite:///{tmp_path}/at_once.db"
        run.upgrade_database(made_at_once)
        return read_schema(made_at_once)
    databases: Databases = request.getfixturevalue("databases")
    return read_schema(databases.url(request.getfixturevalue("migrated_template")))


def test_upgrading_from_empty_gives_the_tables_of_today(url: str, schema_of_today: list[list[str]]) -> None:
    upgrading.upgrade_schema(parse_database_url(url))
    assert read_schema(url) == schema_of_today
    assert run.read_schema_version(url) == run.required_schema_version() == STEPS[-1] == SCHEMA_VERSION


def test_partial_indexes_have_their_condition(url: str) -> None:
    upgrading.upgrade_schema(parse_database_url(url))
    query = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'messages_skeleton'",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'messages_skeleton'",
    }[parse_database_url(url).backend]
    definition = with_connection(url, lambda connection: connection.exec_driver_sql(query).scalar())
    assert "WHERE in_skeleton" in definition


def test_upgrading_twice_changes_nothing(url: str) -> None:
    run.upgrade_database(url)
    run.upgrade_database(url)
    upgrading.upgrade_schema(parse_database_url(url))
    assert run.read_schema_version(url) == run.required_schema_version()


def test_each_step_runs_on_a_filled_database_and_loses_nothing(url: str, schema_of_today: list[list[str]]) -> None:
    """From the second step on, the database is filled by whatever the version before could write: see `fill`."""
    for step in STEPS:
        upgrading.upgrade_schema(parse_database_url(url), step)
        assert run.read_schema_version(url) == step
    asyncio.run(fill(url))
    upgrading.upgrade_schema(parse_database_url(url))
    assert read_schema(url) == schema_of_today


def test_pins_become_marks_and_what_was_indexed_is_indexed_again(url: str) -> None:
    upgrading.upgrade_schema(parse_database_url(url), "2026_11_22_find_messages")
    pins = [{"from_seq": 1, "to_seq": 2, "tokens": 7}]
    states = {"a": {"pins": pins, "indexed": 64, "calibration": {"m": [1, 2]}}, "b": {"indexed": 3}, "c": {"x": "pins"}}
    binary, yes = ("x'00'", 1) if parse_database_url(url).backend == "sqlite" else ("'\\x00'::bytea", "true")
    for name, state in states.items():
        execute(
            url,
            f"""
            INSERT INTO conversations (root, id, tenant, head_seq, head_link, head_skeleton, head_tokens_total,
                answered, encoding, lineage, mode, chunk_count, state, metadata, created_at, updated_at)
            VALUES ('r', '{name}', 't', 0, {binary}, {binary}, 0, {yes}, 'e', '[]', 'append', 0,
                '{orjson.dumps(state).decode()}', '{{}}', '2026-11-21T12:00:00+00:00', '2026-11-21T12:00:00+00:00')""",
        )
    upgrading.upgrade_schema(parse_database_url(url))
    query = "SELECT id, state, marks, indexed_before FROM conversations ORDER BY id"
    rows = with_connection(url, lambda connection: connection.exec_driver_sql(query).all())
    assert [(name, orjson.loads(state), orjson.loads(marks), seq) for name, state, marks, seq in rows] == [
        ("a", {"calibration": {"m": [1, 2]}}, {"pins": pins}, 0),
        ("b", {}, {}, 0),
        ("c", {"x": "pins"}, {}, 0),
    ]


async def fill(url: str) -> None:
    """Everything that a store can keep."""
    store = create_store(url)
    await store.open()
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi", "assistant hello"], external_id="chat")
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 2)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    await store.revise_summary(tenant=tenant, root=conversation.root, summary=replace(chunk, revision=2))
    completion = StoredCompletion("chatcmpl-1", tenant, conversation.root, conversation.id, 1, "m", NOON)
    await store.save_completion(completion)
    await store.claim_idempotency_key(tenant=tenant, key="k", digest=b"d", holder="h", seconds=9, kept_seconds=9)
    await store.add_api_key(ApiKey("key_1", "digest", "abcd", "mine", tenant, ("chat",), NOON))
    await store.ensure_server_secret("pepper", proposed="secret")
    await store.index_messages(conversation, log)
    assert len(await store.search_log(conversation, terms=["hello"], from_seq=0, before_seq=2, limit=9)) == 2
    await store.merge_model_facts(model="provider/model", facts={"window": 8192})
    assert links(await store.read_log(conversation, 0, 9)) == links(log)
    await store.close()


def test_a_newer_schema_is_refused(url: str) -> None:
    run.upgrade_database(url)
    execute(url, "UPDATE alembic_version SET version_num = '2999_01_01_from_the_future'")
    for auto_migrate in (True, False):
        with pytest.raises(run.SchemaIsNewer, match="2999_01_01"):
            run.prepare_database(url, auto_migrate=auto_migrate)
    assert run.read_schema_version(url) == "2999_01_01_from_the_future"


def test_an_older_schema_is_left_alone_where_that_is_wanted(url: str) -> None:
    with pytest.raises(run.SchemaIsOlder, match="migrate"):
        run.prepare_database(url, auto_migrate=False)
    assert run.read_schema_version(url) is None
    run.prepare_database(url, auto_migrate=True)
    run.prepare_database(url, auto_migrate=False)


def test_processes_that_start_together_migrate_once(url: str, schema_of_today: list[list[str]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run.upgrade_database, [url] * 4))
    assert read_schema(url) == schema_of_today


def test_a_database_with_tables_of_others_is_not_taken_for_new(url: str) -> None:
    execute(url, "CREATE TABLE theirs (id INTEGER)")
    run.upgrade_database(url)
    assert run.read_schema_version(url) == run.required_schema_version()
    assert with_connection(url, lambda connection: connection.exec_driver_sql("SELECT * FROM theirs").all()) == []


def test_memory_needs_no_migration() -> None:
    run.prepare_database("memory://", auto_migrate=False)
    assert run.read_schema_version("memory://") == run.required_schema_version()


def test_an_unreachable_database_is_said_to_be_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "text.db").write_text("no database " * 1000)
    for url in (
        "postgresql://u@127.0.0.1:1/x",
        f"sqlite:///{tmp_path}/file/x.db",
        f"sqlite:///{tmp_path}/text.db",
    ):
        with pytest.raises(StoreUnavailable):
            run.prepare_database(url, auto_migrate=True)


def test_a_start_with_nothing_to_migrate_imports_neither_alembic_nor_sqlalchemy(url: str) -> None:
    program = (
        "import sys; from migrations import run; "
        "run.prepare_database(sys.argv[1], auto_migrate=True); run.prepare_database(sys.argv[1], auto_migrate=True); "
        "print({'alembic', 'sqlalchemy', 'asyncpg'} & sys.modules.keys() or '', run.read_schema_version(sys.argv[1]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, url],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    needed = "{'asyncpg'}" if parse_database_url(url).backend == "postgresql" else ""
    assert answer.stdout == f"{needed} {SCHEMA_VERSION}\n"
