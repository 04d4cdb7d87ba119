"""Recorded agent runs, resent turn by turn through windows they do not fit. The simulated model counts exactly, holds
its window and refuses orphaned calls and results, so every answer is a verdict on the view behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.context.count.tokenizers import load_tokenizer
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from tests.live import Reply, ScriptedUpstream, completion, gateway, serving
from tests.shared_data import agent_tools, needs_recordings, recorded
from tests.support.chat_counter import ChatCounter

WINDOWS = {"sim-4096": 4096, "sim-8192": 8192}
AGENT_RUNS_STEP = int(os.environ.get("AGENT_RUNS_STEP", "12"))
"""Every so manieth run is repeated turn by turn."""
COUNTER = ChatCounter(load_tokenizer("o200k_base"))


def turns(run: dict[str, Any], tools: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The request before each of a run's assistant messages."""
    schemas = tools.get(run.get("tools_ref", ""))
    for index, message in enumerate(run["messages"]):
        if message["role"] == "assistant" and index:
            yield {"messages": run["messages"][:index], **({"tools": schemas} if schemas else {})}


@needs_recordings
@pytest.mark.parametrize("model", WINDOWS)
async def test_every_turn_of_an_agent_run_is_answered_within_the_window(model: str) -> None:
    simulator = Simulator(
        SimulatorOptions(max_recorded_requests=4), lambda _: COUNTER, clock=time.time, new_id=lambda: "simulated"
    )
    async with (
        serving(SimulatorApp(simulator), lifespan="off") as upstream,
        gateway(upstream, window=WINDOWS[model]) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=60) as client,
    ):
        for run in recorded("agent_trajectories_dev.jsonl"):
            seen: list[dict[str, Any]] = []
            shape: tuple[Any, ...] = ()
            for request in turns(run, agent_tools()):
                answer = await client.post(
                    "/chat/completions", json={"model": model, **request}, headers={"authorization": run["id"]}
                )
                assert answer.status_code == 200, (run["id"], answer.text)
                body = answer.json()
                context, sent = body["context"], simulator.recorded_requests[-1]["body"]["messages"]
                assert body["usage"]["prompt_tokens"] == context["prompt_tokens"] <= WINDOWS[model]
                assert (body["context_status"] == "full") == (sent == request["messages"])
                assert (body["context_status"] == "summarized") <= bool(context["summaries"])
                before, shape = shape, shape_of(context)
                if shape == before:
                    assert sent[: len(seen)] == seen, "a view begins with the one before until something is cut"
                seen = sent


def shape_of(context: dict[str, Any]) -> tuple[Any, ...]:
    """What changes when something is cut: summaries, what was dropped or shortened, and what is quoted."""
    summaries = tuple(summary["id"] for summary in context["summaries"])
    quoted = tuple((one["seq"], one["before_seq"]) for one in context["quoted"])
    return summaries, context["dropped_messages"], context["trimmed_messages"], quoted


@needs_recordings
@pytest.mark.parametrize("window", [2_048, 4_096, 8_192])
async def test_no_turn_that_fits_is_refused_by_a_provider_that_counts_more(window: int) -> None:
    """Some runs, behind a provider whose tokenizer is 23 % heavier than ours and whose template takes 300 tokens. It
    answers as the run goes on."""
    spoken: dict[str, Any] = {}

    def count(messages: list[dict[str, Any]], tools: Any) -> int:
        return round(300 + 1.23 * COUNTER.count_request(messages, tools=tools))

    def reply(body: dict[str, Any]) -> Reply:
        tokens = count(body["messages"], body.get("tools"))
        if tokens > window:
            said = (
                f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens}."
            )
            return Reply({"error": {"message": said, "code": "context_length_exceeded"}}, 400)
        return completion(**{"prompt_tokens": tokens, **spoken})

    upstream = ScriptedUpstream(default=reply)
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, window=window) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=60) as client,
    ):
        for run in recorded("agent_trajectories_dev.jsonl")[::AGENT_RUNS_STEP]:
            for number, request in enumerate(turns(run, agent_tools()), 1):
                answer_of_run = run["messages"][len(request["messages"])]
                spoken = {name: value for name, value in answer_of_run.items() if name in ("content", "tool_calls")}
                answer = await client.post(
                    "/chat/completions", json={"model": "m", **request}, headers={"authorization": run["id"]}
                )
                body = answer.json()
                if answer.status_code == 200:
                    estimate, reported = body["context"]["prompt_tokens"], body["usage"]["prompt_tokens"]
                    assert number < 5 or abs(estimate - reported) <= 0.05 * reported, (run["id"], number, body)
                    continue
                instructions = [one for one in request["messages"] if one["role"] == "system"]
                newest = [one for one in request["messages"] if one["role"] == "user"][-1:]
                assert count([*instructions, *newest], request.get("tools")) > window, (run["id"], number, body)
