"""A healthy database is clean, and each kind of damage is found: in SQLite and in PostgreSQL."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.api.edge.auth import build_open_caller
from app.context.count.token_counter import load_token_counter
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.faults.database_snapshot import open_database_snapshot
from tests.faults.verification import VerificationReport, verify_database, verify_snapshot
from tests.live import gateway, serving
from tests.postgres import dsn
from tests.store.example_logs import NOON
from tests.support.gateway import assistant, user

KEY = "sk-verified"
POLICIES = {"additive": {"token_floor": 1}}


def long(turn: int) -> str:
    """A question of some 300 tokens."""
    return f"Question {turn}: " + " ".join(f"word{turn}x{number}" for number in range(60))


async def fill(url: str, **sections: Any) -> None:
    """Conversations of every kind: appended, resent, branched, summarized, folded, edited, deleted from, stored."""
    numbers = itertools.count()
    simulator = Simulator(
        SimulatorOptions(),
        lambda _: load_token_counter("o200k_base"),
        clock=lambda: 0.0,
        new_id=lambda: str(next(numbers)),
    )
    async with (
        serving(SimulatorApp(simulator), lifespan="off") as model,
        gateway(model, database=url, window=2048, policies=POLICIES, **sections) as base_url,
        httpx.AsyncClient(base_url=base_url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client,
    ):

        async def say(messages: list[dict[str, Any]], headers: dict[str, str] | None = None, **fields: Any) -> Any:
            body = {"model": "sim", "messages": messages, **fields}
            answer = await client.post("/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        for turn in range(12):
            appended = await say([user(long(turn))], conversation="mine", store=True)
        await say([user("Hi")], headers={"idempotency-key": "one"})
        history: list[dict[str, Any]] = []
        for turn in range(3):
            history.append(user(f"Resent {turn}"))
            told = await say(history)
            history.append(assistant(told["choices"][0]["message"]["content"]))
        await say([*history[:4], user("Another way")])
        ours = appended["conversation_id"]
        items = (await client.get(f"/conversations/{ours}/items?order=desc")).json()["data"]
        spoken = [item["id"] for item in items if item["type"] == "message"]
        assert (await client.delete(f"/conversations/{ours}/items/{spoken[1]}")).status_code == 200
        assert (await client.delete(f"/conversations/{ours}/items/{spoken[4]}?erase=true")).status_code == 200
        for turn in range(8):
            await say([user(long(100 + turn))], conversation="mine")
        await client.get("/search?q=Question")


Execute = Callable[[str], None]


def executing(url: str) -> Execute:
    """Runs SQL on a database, past the gateway."""
    if url.startswith("sqlite"):

        def on_file(sql: str) -> None:
            with sqlite3.connect(url.removeprefix("sqlite+aiosqlite:///")) as connection:
                connection.execute(sql)
            connection.close()

        return on_file

    async def on_server(sql: str) -> None:
        connection = await asyncpg.connect(dsn(url))
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    return lambda sql: asyncio.run(on_server(sql))


@pytest.fixture(params=["sqlite", "postgresql"])
def healthy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a filled database of the test's own."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("filled_file"), tmp_path / "kept.db")
        yield f"sqlite+aiosqlite:///{tmp_path}/kept.db"
        return
    databases = request.getfixturevalue("databases")
    name = databases.create(template=request.getfixturevalue("filled_template"))
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture(scope="module")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("filled") / "kept.db"
    url = f"sqlite+aiosqlite:///{file}"
    prepare_database(url, auto_migrate=True)
    asyncio.run(fill(url))
    return file


@pytest.fixture(scope="module")
def filled_template(request: pytest.FixtureRequest) -> Iterator[str]:
    databases = request.getfixturevalue("databases")
    name = databases.create(template=request.getfixturevalue("migrated_template"))
    asyncio.run(fill(databases.url(name)))
    yield name
    databases.drop(name)


def test_a_healthy_database_is_clean(healthy: str) -> None:
    found = asyncio.run(verify_database(healthy, now=NOON))
    assert found.faults == []
    assert found.notices == []
    assert found.drift_share < 0.01
    assert found.messages > 30
    assert found.chunks > 2
    assert found.redacted_messages == 2
    assert found.miscounted_messages == 0


FIRST = "(SELECT min(id) FROM conversations WHERE head_seq > 20)"
DAMAGES = {
    "sequence": f"DELETE FROM messages WHERE seq = 7 AND conversation_id = {FIRST}",
    "totals": f"UPDATE messages SET tokens_total = tokens_total + 1 WHERE seq = 5 AND conversation_id = {FIRST}",
    "link": f"UPDATE messages SET body = replace(body, 'word', 'weird') WHERE seq = 8 AND conversation_id = {FIRST}",
    "body": f"UPDATE messages SET body = '[1' WHERE seq = 9 AND conversation_id = {FIRST}",
    "answered": f"UPDATE messages SET answered = (1 = 0) WHERE seq = 9 AND conversation_id = {FIRST}",
    "head": f"UPDATE conversations SET head_tokens_total = 3 WHERE id = {FIRST}",
    "lineage": "UPDATE conversations SET lineage = replace(lineage, ',3]', ',99]') WHERE lineage <> '[]'",
    "messages": f"DELETE FROM conversations WHERE id = {FIRST}",
    "external id": "UPDATE external_ids SET conversation_id = 'conv_gone'",
    "completion": "UPDATE completions SET seq = 999",
    "chunk": "UPDATE chunks SET to_seq = to_seq + 1 WHERE id = (SELECT min(id) FROM chunks)",
    "revision": """
        INSERT INTO chunk_revisions (root, chunk_id, revision, tenant, text, tokens, kind, model, prompt_version,
                                     created_at, duration_ms)
        SELECT root, 'gone', 1, tenant, text, tokens, kind, model, prompt_version, created_at, duration_ms
        FROM chunks WHERE id = (SELECT min(id) FROM chunks)""",
    "index": "UPDATE tenant_scopes SET conversation_id = 'conv_gone'",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found(healthy: str, kind: str) -> None:
    executing(healthy)(DAMAGES[kind])
    found = asyncio.run(verify_database(healthy, now=NOON))
    assert kind in {one.kind for one in found.faults}, found.counts_by_kind


def test_folds_that_lost_a_part_and_beginnings_that_moved_are_told(healthy: str) -> None:
    executing(healthy)(
        "UPDATE chunks SET from_link = to_link, tokens_total = 1, folds = '[\"sum_gone\"]' "
        "WHERE id = (SELECT min(id) FROM chunks)"
    )
    told = " ".join(one.description for one in asyncio.run(verify_database(healthy, now=NOON)).faults)
    for expected in ("it folds sum_gone", "has its beginning", "tokens through its end are 1"):
        assert expected in told


def test_leases_of_the_dead_and_answers_that_are_gone_are_no_faults(healthy: str) -> None:
    execute = executing(healthy)
    execute("INSERT INTO leases VALUES ('r', 'conv_x', 'h', 1, '2020-01-01T00:00:00.000000+00:00')")
    execute("UPDATE request_keys SET seq = 999")
    found = asyncio.run(verify_database(healthy, now=NOON))
    assert found.faults == []
    assert {"lease", "request key"} <= {one.kind for one in found.notices}


def test_what_is_encrypted_is_checked_with_its_key_and_said_to_be_unchecked_without(tmp_path: Path) -> None:
    url, key = f"sqlite+aiosqlite:///{tmp_path}/kept.db", bytes(range(32))
    prepare_database(url, auto_migrate=True)
    asyncio.run(fill(url, encryption={"keys": {"k": base64.b64encode(key).decode()}, "active": "k"}))
    with_key, without = asyncio.run(verify_database(url, {"k": key})), asyncio.run(verify_database(url))
    assert with_key.faults == without.faults == []
    assert with_key.unreadable_messages == 0
    assert without.unreadable_messages == without.messages
    assert "encryption" in {one.kind for one in without.notices}


def test_verifying_sees_one_moment_whoever_erases_meanwhile(healthy: str) -> None:
    url = healthy

    async def meanwhile() -> VerificationReport:
        async with open_database_snapshot(url) as audit:
            before = await audit.count_rows()
            store = create_store(url)
            await store.open()
            tenant = build_open_caller(
                f"Bearer {KEY}", None, await store.ensure_server_secret("pepper", proposed="")
            ).tenant
            found = await store.find_conversation(tenant=tenant, conversation_id="mine")
            assert found is not None
            await store.erase_conversation(tenant=tenant, conversation_id=found.id)
            await store.close()
            assert await audit.count_rows() == before
            return await verify_snapshot(audit, now=NOON)

    assert asyncio.run(meanwhile()).faults == []


def test_a_summary_of_messages_that_were_never_stored_is_no_fault(healthy: str) -> None:
    executing(healthy)("UPDATE chunks SET to_link = from_link WHERE from_seq = 0 AND NOT is_fold")
    found = asyncio.run(verify_database(healthy, now=NOON))
    assert found.faults == []
    assert [one.kind for one in found.notices] == ["chunk"]
