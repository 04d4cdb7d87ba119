"""A compaction during which the store goes away: the view is made of the client's messages, and of nothing else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from app.errors import StoreUnavailable
from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.compact.test_blocking import WINDOW
from tests.support.gateway import (
    World,
    is_summary,
    long_history,
    material,
    shown,
    summaries_asked,
    user,
    world,
)

READS = ("find_summaries", "read_log", "read_log_ranges", "search_log")


def upstream_with_held_summaries(gate: asyncio.Event) -> ScriptedUpstream:
    """Its summaries have the first word of each message of their range, and wait at the gate."""

    def reply_to(body: dict[str, Any]) -> Reply:
        if not is_summary(body):
            turn = len(body["messages"])
            return completion(" ".join(f"answer{turn}n{number}" for number in range(40)))
        reply = completion(" ".join(re.findall(r"item\d+n0", material(body))))
        reply.gate = gate
        return reply

    return ScriptedUpstream(default=reply_to)


def take_store_away(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store is away.")

    for name in READS:
        monkeypatch.setattr(w.store, name, fail)


@pytest.mark.parametrize("dropped_messages", [0, 2])
async def test_a_summary_is_shown_only_for_messages_that_the_request_carries(
    monkeypatch: pytest.MonkeyPatch, dropped_messages: int
) -> None:
    """The summary that a request waits for was begun for an earlier one, which carried more."""
    gate = asyncio.Event()
    upstream = upstream_with_held_summaries(gate)
    policies = {"additive": {"blocking": False, "prepare_ratio": 0.5}}
    async with world(upstream, window=WINDOW, policies=policies) as w:
        history: list[dict[str, Any]] = []
        questions = iter(long_history(30)[::2])
        while not summaries_asked(upstream):  # one is made ahead, for the next request
            history.append(next(questions))
            body = await w.say(history)
            history.append(body["choices"][0]["message"])
            await asyncio.sleep(0.05)
        (kept,) = w.conversations()
        asked = asyncio.ensure_future(w.say([*history[dropped_messages:], user("And then? " + "word " * 4_000)]))
        await asyncio.sleep(0.5)
        assert [kept.id] == [one.id for one in w.conversations()]
        assert not asked.done()
        take_store_away(w, monkeypatch)
        gate.set()
        body = await asked
        view = str(shown(upstream)[-1])
    assert ("item0n0" in view) == (dropped_messages == 0)
    assert body["context_status"] == "degraded"
