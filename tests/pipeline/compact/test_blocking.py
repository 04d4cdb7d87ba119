"""Whether a turn over the compaction threshold waits for its summary."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.gateway import answered, is_summary, long_history, shown, summaries_asked, until, user, world

WINDOW = 8_192
SUMMARY = " ".join(f"item{turn}n0" for turn in range(40))


def upstream_with_held_summaries(gate: asyncio.Event) -> ScriptedUpstream:
    def reply_to(body: dict[str, Any]) -> Reply:
        if not is_summary(body):
            return answered_reply()
        reply = completion(SUMMARY)
        reply.gate = gate
        return reply

    return ScriptedUpstream(default=reply_to)


def answered_reply() -> Reply:
    return completion(answered("Noted.")["content"])


def turns_over_the_threshold() -> list[list[dict[str, Any]]]:
    """Two requests: the first is below the threshold of 5,734 tokens, the second above it and within the limit."""
    history = long_history(60, 100)
    return [[*history[:80], user("And?")], [user("And then? " + "word " * 900)]]


@pytest.mark.parametrize("prepare_ratio", [0.6, 1.0])
async def test_a_turn_that_fits_is_sent_as_it_is_while_its_summary_is_written(prepare_ratio: float) -> None:
    gate = asyncio.Event()
    upstream = upstream_with_held_summaries(gate)
    policies = {"additive": {"blocking": False, "prepare_ratio": prepare_ratio}}
    first, second = turns_over_the_threshold()
    async with world(upstream, window=WINDOW, policies=policies) as gateway:
        body = await gateway.say(first)
        messages = [*first, body["choices"][0]["message"], *second]
        body = await asyncio.wait_for(gateway.say(messages), timeout=20)
        assert body["context"]["prompt_tokens"] > body["context"]["compacts_above"]
        assert (body["context_status"], body["context"]["compaction"]["ran"]) == ("full", False)
        assert shown(upstream)[-1] == messages
        await until(lambda: bool(summaries_asked(upstream)))
        gate.set()
        await until(nothing_is_prepared)
        body = await gateway.say([*messages, body["choices"][0]["message"], user("So?")])
        assert body["context_status"] == "summarized"
        assert not body["context"]["compaction"]["ran"]


async def test_a_turn_of_a_blocking_policy_waits_for_its_summary() -> None:
    gate = asyncio.Event()
    upstream = upstream_with_held_summaries(gate)
    first, second = turns_over_the_threshold()
    async with world(upstream, window=WINDOW, policies={"additive": {"blocking": True}}) as gateway:
        body = await gateway.say(first)
        asked = asyncio.ensure_future(gateway.say([*first, body["choices"][0]["message"], *second]))
        await until(lambda: bool(summaries_asked(upstream)))
        assert len(shown(upstream)) == 1
        gate.set()
        assert (await asked)["context_status"] == "summarized"
