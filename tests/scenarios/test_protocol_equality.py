"""An agent's run through the Responses API and the Messages API gets the same views as through Chat Completions, at
every turn."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.live import gateway, serving
from tests.scenarios.agent_talks import (
    AgentClient,
    Body,
    Run,
    RunModel,
    Turn,
    compact_arguments,
    drop_null_fields,
    make_run,
)
from tests.shared_data import agent_tools, needs_recordings, recorded
from tests.support.gateway import is_summary

MAX_TOKENS = 500
AGENT_RUNS_STEP = int(os.environ.get("AGENT_RUNS_STEP", "12"))
"""Every so manieth recorded run is sent."""
WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("resent", "resent", {}),
    ("resent", "resent", {"fields": {"store": False}, "has_instructions": True}),
    ("previous_response_id", "conversation", {}),
    ("previous_response_id", "conversation", {"has_instructions": True}),
    ("conversation", "conversation", {}),
]
"""How the Responses client sends a run, and how the chat client does to which it is compared."""
NAMES = [way + "".join(f"-{name}" for name in more) for way, _, more in WAYS]
_chat_turns: dict[tuple[str, int, str], list[list[Turn]]] = {}


async def send_runs(runs: Sequence[Run], window: int, protocol: str, way: str, **more: Any) -> list[list[Turn]]:
    """Returns what the requests of each run caused, at a gateway that has learned from no other usage."""
    model = RunModel(window)
    async with (
        serving(model, lifespan="off") as upstream,
        gateway(upstream, window=window) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=60) as client,
    ):
        sender = AgentClient(client, model, protocol, way, **more)
        turns = [await sender.send_run(run) for run in runs]
    assert model.refusals == []
    return turns


async def check_equality(
    runs: Sequence[Run], window: int, way: str, chat_way: str, more: dict[str, Any]
) -> list[list[Turn]]:
    """Compares all that reached the provider, and what the answers tell about it. Returns the turns."""
    place = (",".join(run.name for run in runs), window, chat_way)
    if place not in _chat_turns:
        _chat_turns[place] = await send_runs(runs, window, "chat", chat_way)
    by_responses = await send_runs(runs, window, "responses", way, **more)
    for run, chat, responses in zip(runs, _chat_turns[place], by_responses, strict=True):
        for number, (expected, turn) in enumerate(zip(chat, responses, strict=True)):
            where = (run.name, number)
            assert list_requests(turn) == list_requests(expected), where
            assert (turn.status, turn.usage) == (expected.status, expected.usage), where
            assert simplify_context(turn.context) == simplify_context(expected.context), where
    return by_responses


def list_requests(turn: Turn) -> list[Body]:
    """Returns what reached the provider. Calls of the summarizer are sorted, because parts are summarized at once."""
    summaries = [one for one in turn.asked if is_summary(one)]
    answers = [one for one in turn.asked if not is_summary(one)]
    return [
        *sorted(map(simplify_request, summaries), key=lambda one: json.dumps(one, sort_keys=True)),
        *map(simplify_request, answers),
    ]


def simplify_request(body: Body) -> Body:
    """Leaves out fields that are null, and those that Responses clients send otherwise."""
    fields = {name: value for name, value in body.items() if name in ("tools", "max_tokens")}
    return {**fields, "messages": list(map(drop_null_fields, body["messages"]))}


def simplify_context(context: Body) -> Body:
    """Leaves out ids of summaries and durations, which are others each time, and what is said of `store: false`."""
    summaries = [{**one, "id": ""} for one in context["summaries"]]
    warnings = [one for one in context["warnings"] if not one.startswith("`store: false`")]
    compaction = {**(context["compaction"] or {}), "duration_ms": 0}
    return {**context, "summaries": summaries, "compaction": compaction, "warnings": warnings}


def count_compactions(turns: Sequence[Sequence[Turn]]) -> int:
    return sum(any(map(is_summary, turn.asked)) for run in turns for turn in run)


@pytest.mark.parametrize("window", [4_096, 8_192])
@pytest.mark.parametrize(("way", "chat_way", "more"), WAYS, ids=NAMES)
async def test_views_equal_those_of_chat(way: str, chat_way: str, more: dict[str, Any], window: int) -> None:
    turns = await check_equality([make_run(1), make_run(2)], window, way, chat_way, more)
    assert count_compactions(turns) >= 2


@needs_recordings
@pytest.mark.parametrize("window", [4_096, 8_192])
@pytest.mark.parametrize(("way", "chat_way", "more"), WAYS, ids=NAMES)
async def test_views_of_recorded_runs_equal_those_of_chat(
    way: str, chat_way: str, more: dict[str, Any], window: int
) -> None:
    tools = agent_tools()
    runs = [
        Run(line["id"], line["messages"], tools.get(line.get("tools_ref", ""), []))
        for line in recorded("agent_trajectories_dev.jsonl")[::AGENT_RUNS_STEP]
    ]
    turns = await check_equality(runs, window, way, chat_way, more)
    print(f"{way} {window}: {sum(map(len, turns))} turns, {count_compactions(turns)} with a compaction")
    assert count_compactions(turns)


async def check_messages(runs: Sequence[Run], window: int) -> list[list[Turn]]:
    """Compares a Messages client with a chat client. The Messages API needs a limit, so both set one."""
    compacted = list(map(compact_arguments, runs))
    fields = {"max_tokens": MAX_TOKENS}
    by_chat = await send_runs(compacted, window, "chat", "resent", fields=fields)
    by_messages = await send_runs(compacted, window, "messages", "resent", fields=fields)
    for run, chat, messages in zip(runs, by_chat, by_messages, strict=True):
        for number, (expected, turn) in enumerate(zip(chat, messages, strict=True)):
            where = (run.name, number)
            assert list_requests(turn) == list_requests(expected), where
            assert (turn.status, turn.usage) == (expected.status, expected.usage), where
            assert simplify_context(turn.context) == simplify_context(expected.context), where
    return by_messages


@pytest.mark.parametrize("window", [4_096, 8_192])
async def test_views_of_messages_equal_those_of_chat(window: int) -> None:
    assert count_compactions(await check_messages([make_run(1), make_run(2)], window)) >= 2


@needs_recordings
@pytest.mark.parametrize("window", [4_096, 8_192])
async def test_views_of_recorded_runs_by_messages_equal_those_of_chat(window: int) -> None:
    tools = agent_tools()
    runs = [
        Run(line["id"], line["messages"], tools.get(line.get("tools_ref", ""), []))
        for line in recorded("agent_trajectories_dev.jsonl")[::AGENT_RUNS_STEP]
    ]
    assert count_compactions(await check_messages(runs, window))
