"""`concertina doctor` has summaries made anew that say nothing, as earlier versions accepted them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.__main__ import main
from app.context.count.token_counter import load_token_counter
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from tests.live import gateway, serving
from tests.support.gateway import user

SMALL_WINDOW, WINDOW = 2048, 4096
TURNS = {SMALL_WINDOW: 7, WINDOW: 18}
"""So many turns bring the first summaries. In the small window they are folded at once."""
REFUSAL = "I'm sorry, but I can't help with that request."
CHUNKS = "SELECT kind, text FROM chunks ORDER BY to_seq"


@asynccontextmanager
async def serving_from(database: Path, window: int) -> AsyncIterator[httpx.AsyncClient]:
    numbers = itertools.count()
    simulator = Simulator(
        SimulatorOptions(),
        lambda _: load_token_counter("o200k_base"),
        clock=lambda: 0.0,
        new_id=lambda: str(next(numbers)),
    )
    async with (
        serving(SimulatorApp(simulator), lifespan="off") as model,
        gateway(model, database=f"sqlite:///{database}", window=window) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=30) as client,
    ):
        yield client


async def say(client: httpx.AsyncClient, turn: int) -> None:
    text = f"Question {turn}: " + " ".join(f"word{turn}x{number}" for number in range(60))
    body: dict[str, Any] = {"model": "sim", "messages": [user(text)]}
    answer = await client.post("/chat/completions", json=body, headers={"X-Conversation-Id": "mine"})
    assert answer.status_code == 200, answer.text


def run_on(database: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as connection:
        return connection.execute(sql, values).fetchall()


async def store_refusal(database: Path, window: int) -> list[tuple[Any, ...]]:
    """Talks until there are summaries, and puts a refusal in the place of the newest; returns the rows before that."""
    async with serving_from(database, window) as client:
        for turn in range(TURNS[window]):
            await say(client, turn)
    rows = run_on(database, CHUNKS)
    assert {kind for kind, _ in rows} == {"model"}
    await asyncio.to_thread(main, ["doctor"])
    run_on(database, "UPDATE chunks SET text = ? WHERE to_seq = (SELECT max(to_seq) FROM chunks)", REFUSAL)
    return rows


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", f"sqlite:///{tmp_path}/kept.db")
    return tmp_path / "kept.db"


async def test_a_stored_refusal_becomes_an_excerpt_then_a_summary_by_a_model(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await store_refusal(database, WINDOW)
    assert "without a word" not in capsys.readouterr().out
    await asyncio.to_thread(main, ["doctor"])
    assert "Found 1 summary without a word" in capsys.readouterr().out
    *others, (kind, text) = run_on(database, CHUNKS)
    assert (others, kind) == (before[:-1], "mechanical")
    assert "word" in text
    async with serving_from(database, WINDOW) as client:
        await say(client, TURNS[WINDOW])
        async with asyncio.timeout(20):
            while any(kind == "mechanical" for kind, _ in run_on(database, CHUNKS)):  # noqa: ASYNC110 - unannounced
                await asyncio.sleep(0.02)
    assert REFUSAL not in [text for _, text in run_on(database, CHUNKS)]
    assert (REFUSAL,) in run_on(database, "SELECT text FROM chunk_revisions")


async def test_a_fold_that_says_nothing_is_deleted_and_made_again_when_it_is_needed(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await store_refusal(database, SMALL_WINDOW)
    folds = run_on(database, "SELECT text FROM chunks WHERE folds != '[]'")
    assert folds == [(REFUSAL,)]
    await asyncio.to_thread(main, ["doctor"])
    assert "Found 2 summaries without a word" in capsys.readouterr().out
    after = run_on(database, CHUNKS)
    assert (after[:-1], after[-1][0]) == (before[:-2], "mechanical")
