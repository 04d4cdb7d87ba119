"""What of a long conversation a model still sees when its summarizer is of no use, and what that costs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from app.context.count.tokenizers import load_tokenizer
from app.pipeline.compact.precompaction import Precompactor
from tests.live import Reply, ScriptedUpstream, completion
from tests.shared_data import needs_recordings, recorded
from tests.support.chat_counter import ChatCounter
from tests.support.gateway import (
    assistant,
    call,
    is_summary,
    result,
    shown,
    summaries_asked,
    system,
    until,
    user,
    world,
)

SMALL_WINDOW = 2_000
NONSENSE = "They spoke about many trips."
POLICIES = {"additive": {"token_floor": 1}}
MEANT = re.compile(r"the last (\d+) messages before this one, from the user's message that begins \"(.{20})")
NAMES = [f"{first}{last}" for first in ("Al", "Be", "Ca", "Do", "Em", "Fi") for last in "abcdefghij"]
COUNTER = ChatCounter(load_tokenizer("o200k_base"))
LATE_USE_SHARE = 0.75
"""Of the values that recorded agents use late and saw early only, those that a nonsense summarizer must leave."""


def upstream_that_summarizes_as(summary: Reply) -> ScriptedUpstream:
    return ScriptedUpstream(default=lambda body: summary if is_summary(body) else completion("Fine."))


def bookings(count: int) -> list[dict[str, Any]]:
    """An agent's run: each booking has arguments of its own, and much noise as its result."""
    run = [user("Please book these trips for me, one after the other.")]
    for n in range(count):
        arguments = json.dumps({"reservation_id": f"RES{n}XQ", "user_id": f"mia_kim_{4000 + n}"})
        noise = " ".join(f"seat {letter} was looked at and found to be free" for letter in "abcdef")
        run += [assistant(None, tool_calls=[call("book", arguments, f"call_{n}")]), result(noise, f"call_{n}")]
        run += [assistant(f"Trip number {n} is booked."), user("Go on, please.")]
    return run


def nothing_is_prepared() -> bool:
    """Whether no conversation is worked on behind its answer: a call from there would fail beside a turn's own."""
    running = (task.get_coro() for task in asyncio.all_tasks())
    return not any(getattr(work, "__qualname__", "").startswith(f"{Precompactor.__name__}.") for work in running)


async def views_of(upstream: ScriptedUpstream, conversation: list[dict[str, Any]], gateway: Any) -> None:
    """Play a run as its client would: everything so far, up to each user message."""
    for end, message in enumerate(conversation, 1):
        if message["role"] == "user":
            await gateway.say(conversation[:end])


@pytest.mark.parametrize(
    "summary",
    [completion(NONSENSE), completion(f"{NONSENSE} " * 40), completion(""), Reply({"error": {"message": "No."}}, 400)],
    ids=["nonsense", "long nonsense", "blank", "refused"],
)
async def test_early_arguments_survive_a_small_window_whatever_the_summarizer_does(summary: Reply) -> None:
    upstream, run = upstream_that_summarizes_as(summary), bookings(12)
    async with world(upstream, window=SMALL_WINDOW, policies=POLICIES) as gateway:
        await views_of(upstream, run, gateway)
        assert summaries_asked(upstream)
    last = json.dumps(shown(upstream)[-1])
    assert len(shown(upstream)[-1]) < len(run)
    for n in range(12):
        assert f"RES{n}XQ" in last
        assert f"mia_kim_{4000 + n}" in last


async def test_a_range_costs_one_call_although_its_summary_is_nonsense() -> None:
    upstream, run = upstream_that_summarizes_as(completion(NONSENSE)), bookings(12)
    async with world(upstream, window=SMALL_WINDOW, policies=POLICIES) as gateway:
        await views_of(upstream, run, gateway)
        made = gateway.chunks()
    assert len(summaries_asked(upstream)) == len(made)
    assert len({(chunk.from_link, chunk.to_link, bool(chunk.folds)) for chunk in made}) == len(made)


async def test_a_summarizer_that_is_down_is_not_asked_at_every_turn() -> None:
    upstream = upstream_that_summarizes_as(Reply({"error": {"message": "Down."}}, 500))
    run = bookings(60)
    async with world(
        upstream, window=SMALL_WINDOW, policies=POLICIES, retries={"attempts": 1, "breaker_failures": 100}
    ) as gateway:
        for end, message in enumerate(run, 1):
            if message["role"] == "user":
                await gateway.say(run[:end])
                await until(nothing_is_prepared)
        assert len(gateway.chunks()) > 3
    assert len(summaries_asked(upstream)) == 3


@needs_recordings
async def test_what_recorded_agents_need_late_survives_a_nonsense_summarizer() -> None:
    upstream = upstream_that_summarizes_as(completion(NONSENSE))
    runs = [run for run in recorded("agent_trajectories_dev.jsonl") if run["late_use"]]
    seen: list[bool] = []
    # One window says little: whether a fold is due in it changes the sum by a tenth.
    for window in (SMALL_WINDOW, SMALL_WINDOW * 11 // 10, SMALL_WINDOW * 12 // 10):
        async with world(upstream, window=window, policies=POLICIES) as gateway:
            for run in runs:
                messages = [message for message in run["messages"] if message["role"] != "system"]
                instructions = len(run["messages"]) - len(messages)
                for end, needed in _needed(run["late_use"]):
                    await gateway.say([system("Be brief."), *messages[: end - instructions]])
                    view = json.dumps(shown(upstream)[-1], ensure_ascii=False)
                    seen += [value in view for value in needed]
    print(f"{sum(seen)} of {len(seen)} values that are needed late are seen")
    assert sum(seen) >= LATE_USE_SHARE * len(seen)


def _needed(late_use: Iterable[dict[str, Any]]) -> list[tuple[int, list[str]]]:
    """The values that are needed at each message, by its index in the run."""
    needed: dict[int, list[str]] = {}
    for use in late_use:
        needed.setdefault(use["used_at"], []).append(use["value"])
    return sorted(needed.items())


def counting(body: dict[str, Any]) -> Reply:
    """An upstream that reports about as many tokens as were sent."""
    text = "They spoke about lockers." if is_summary(body) else "Noted."
    return completion(text, prompt_tokens=COUNTER.count_request(body["messages"]))


async def test_what_is_only_quoted_in_a_range_does_not_shift_what_is_meant() -> None:
    """Quotations stand between the messages of the last view, which a summary call begins with."""
    upstream = ScriptedUpstream(default=counting)
    async with world(upstream, window=8192) as gateway:
        history: list[dict[str, Any]] = []
        for turn in range(80):
            fact = f"The locker of {NAMES[turn % 60]} has code {turn * 7919}. " + "It went on and on. " * 40
            text = fact if turn % 6 else f"What code has the locker of {NAMES[turn // 3 + 1]}?"
            history.append(user(text))
            history.append(assistant((await gateway.say(history))["choices"][0]["message"]["content"]))
        asked = [body for body in summaries_asked(upstream) if len(body["messages"]) > 1]
        quoting = [body for body in asked if "Quoted from earlier" in str(body["messages"])]
        assert len(quoting) >= 2
        for body in quoting:
            meant = MEANT.search(str(body["messages"][-1]["content"]))
            assert meant is not None
            said = body["messages"][:-1][-int(meant.group(1)) :]
            begins = next(one["content"] for one in said if "Quoted from" not in str(one["content"]))
            assert begins.startswith(meant.group(2))
