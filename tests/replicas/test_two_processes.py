"""Two gateway processes on one database: one summary for a range, one order of turns, nothing lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.edge.auth import build_open_caller
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.harness import Gateway, Simulated, gateway_config
from tests.support.gateway import is_summary, material, user

AUTHORIZATION = "Bearer sk-replicas"
WINDOW = 4096
POLICIES = {"additive": {"token_floor": 1}}


@pytest.fixture(scope="module")
def model() -> Iterator[Simulated]:
    with Simulated("--summary-seconds", "0.4") as simulated:
        yield simulated


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    prepare_database(url, auto_migrate=True)
    return url


@pytest.fixture
def replicas(model: Simulated, database: str, tmp_path: Path) -> Iterator[list[Gateway]]:
    model.forget()
    # While one of twenty requests at once made its process load a tokenizer's table, the others would stand still.
    config = gateway_config(model.base_url, database, window=WINDOW, policies=POLICIES)
    with Gateway(tmp_path / "one", config) as one, Gateway(tmp_path / "two", config) as two:
        yield [one, two]


async def say(client: httpx.AsyncClient, gateway: Gateway, messages: list[dict[str, Any]], **fields: Any) -> Any:
    answer = await client.post(
        f"{gateway.base_url}/chat/completions",
        json={"model": "sim", "messages": messages, **fields},
        headers={"authorization": AUTHORIZATION},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def question(turn: int) -> dict[str, Any]:
    return user(f"Turn {turn}: " + " ".join(f"note{turn}x{word}" for word in range(60)))


def ranges_asked(model: Simulated) -> Counter[str]:
    """How often each range was summarized, by the first line of its material."""
    asked = [body for body in map(body_of, model.requests()) if is_summary(body)]
    return Counter(first_note(material(body)) for body in asked)


def body_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record.get("body", record)
    return found


def first_note(told: str) -> str:
    """Names a summary call by its kind and the first turn that it reads: a fold begins where a chunk does."""
    start = told.index("Turn ")
    return f"{told[:9]} … {told[start : start + 8]}"


async def test_twenty_appends_at_once_are_stored_in_one_order_with_one_summary_for_each_range(
    replicas: list[Gateway], model: Simulated, database: str
) -> None:
    async with httpx.AsyncClient(timeout=90) as client:
        for turn in range(6):
            first = await say(client, replicas[turn % 2], [question(turn)], conversation="shared")
        ours = first["conversation_id"]
        answers = await asyncio.gather(
            *(say(client, replicas[turn % 2], [question(turn)], conversation="shared") for turn in range(6, 26))
        )
        assert {body["conversation_id"] for body in answers} == {ours}
        listed = await say(client, replicas[0], [user("Last")], conversation=ours)
        assert listed["conversation_id"] == ours
    calls = ranges_asked(model)
    assert calls
    assert set(calls.values()) == {1}
    log = await everything(database, ours)
    assert [entry["seq"] for entry in log] == list(range(2 * 27))
    asked = [entry["text"].split(":")[0] for entry in log if entry["role"] == "user"]
    assert sorted(asked) == sorted([*(f"Turn {turn}" for turn in range(26)), "Last"])
    assert [entry["role"] for entry in log] == ["user", "assistant"] * 27


async def test_twenty_resends_at_once_over_the_line_cost_one_summary_for_each_range(
    replicas: list[Gateway], model: Simulated
) -> None:
    history: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=90) as client:
        for turn in range(40):
            history.append(question(turn))
            history.append({"role": "assistant", "content": f"Noted turn {turn}."})
        # Each resend has a newest message of another length, so that plans may differ by a round.
        ways = [[*history, user("Way " + "on " * (way * 12))] for way in range(20)]
        answers = await asyncio.gather(*(say(client, replicas[way % 2], ways[way]) for way in range(20)))
        assert {body["context_status"] for body in answers} == {"summarized"}
        assert len({body["conversation_id"] for body in answers}) == 20
    calls = ranges_asked(model)
    assert calls
    assert set(calls.values()) == {1}


async def everything(database: str, conversation_id: str) -> list[dict[str, Any]]:
    """The log of a conversation, read past the store's own look-ups by tenant."""
    store = create_store(database)
    await store.open()
    try:
        tenant = build_open_caller(AUTHORIZATION, None, await store.ensure_server_secret("pepper", proposed="")).tenant
        found = await store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        assert found is not None
        log = await store.read_log(found, 0, found.head_seq + 1)
    finally:
        await store.close()
    return [{"seq": one.seq, "role": one.message.role, "text": one.message.text} for one in log]
