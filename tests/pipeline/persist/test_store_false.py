"""`store: false`: nothing of the turn is in the database, whichever way it came and whatever happened in it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import (
    World,
    answered,
    is_summary,
    long_history,
    pick_word,
    summaries_asked,
    system,
    user,
)
from tests.support.sqlite_gateway import at_rest, file_bytes, words_in

WORDS = ["marmalade", "zanzibar", "obelisk", "quinine", "tangerine", "idem-quartz"]
QUESTION = "Where is the marmalade?"


def telling(body: dict[str, Any]) -> Reply:
    """An upstream whose summaries say `quinine`, and whose answers to the secret question `zanzibar`."""
    if is_summary(body):
        return completion(f"They spoke of quinine and {pick_word(body)}.", prompt_tokens=1000)
    last = str(body["messages"][-1]["content"])
    words = "In zanzibar." if "marmalade" in last else answered(last)["content"]
    return stream(words) if body.get("stream") else completion(words)


def row_counts(folder: Path) -> dict[str, int]:
    """How many rows each table has, what is learned of models aside."""
    with sqlite3.connect(f"file:{folder}/kept.db?mode=ro", uri=True) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    connection.close()
    return {name: count for name, count in counts.items() if name not in ("model_facts", "server_secrets")}


async def ask(world: World, messages: list[dict[str, Any]], streams: bool, **options: Any) -> None:
    fields = {"store": False, "metadata": {"topic": "tangerine"}, **options}
    if streams:
        events = await world.stream(messages, **fields)
        assert "zanzibar" in str(events)
    else:
        assert "zanzibar" in str(await world.say(messages, **fields))


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def streams(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[{}, {"idempotency-key": "idem-quartz"}], ids=["without-key", "with-key"])
def headers(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(request.param)


def list_grown_tables(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Tables with other rows than before. An answer is counted by digests without text, stored or not: else an equal
    answer of somebody else would prove that person's conversation."""
    return [name for name, count in after.items() if count != before[name] and name != "fingerprints"]


@pytest.mark.parametrize("before", [None, "appended", "resent"])
async def test_nothing_of_the_turn_is_kept(
    tmp_path: Path, before: str | None, streams: bool, headers: dict[str, str]
) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=telling)) as world:
        messages, options = [system("Speak of the obelisk."), user(QUESTION)], dict[str, Any]()
        if before == "appended":
            await world.say([user("Hello")], conversation_id="mine")
            options["conversation_id"] = "mine"
        elif before == "resent":
            await world.say([user("Hello")])
            messages[1:1] = [user("Hello"), answered("Hello")]
        counts = row_counts(tmp_path)
        await ask(world, messages, streams, headers=headers, **options)
        assert list_grown_tables(counts, row_counts(tmp_path)) == []
    assert words_in(tmp_path, WORDS) == []


@pytest.mark.parametrize("before", [None, "resent"])
async def test_nothing_is_kept_of_a_turn_that_does_not_fit(
    tmp_path: Path, before: str | None, streams: bool, headers: dict[str, str]
) -> None:
    upstream = ScriptedUpstream(default=telling)
    history = long_history(20, words=400)
    async with at_rest(tmp_path, upstream, window=4096) as world:
        if before == "resent":
            await world.say([*history, user("And then?")])
            history += [user("And then?"), answered("And then?")]
        counts, asked = row_counts(tmp_path), len(summaries_asked(upstream))
        longer = [*history, *[user(f"obelisk {'so ' * 300}"), answered(f"obelisk {'so ' * 300}")] * 9, user(QUESTION)]
        await ask(world, longer, streams, headers=headers)
        assert list_grown_tables(counts, row_counts(tmp_path)) == []
        assert len(summaries_asked(upstream)) == asked
    assert words_in(tmp_path, [word for word in WORDS if word != "quinine"]) == []
    assert before or b"quinine" not in file_bytes(tmp_path)


async def test_a_request_that_comes_again_leaves_no_trace_either(tmp_path: Path) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=telling)) as world:
        for _ in range(2):
            await ask(world, [user(QUESTION)], streams=False, headers={"idempotency-key": "idem-quartz"})
    assert words_in(tmp_path, WORDS) == []


async def test_what_is_summarized_now_is_not_summarized_for_a_turn_that_is_not_kept(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=telling)
    async with at_rest(tmp_path, upstream, window=4096) as world:
        messages = [*long_history(6), user(QUESTION)]
        await ask(world, messages, streams=False, context={"summarize": "now"})
        assert summaries_asked(upstream) == []
    assert words_in(tmp_path, WORDS) == []
