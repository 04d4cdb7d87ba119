"""Agents' runs under the policies that shorten: whether the first task stays in view, and what checkpoints cost.

`python -m tests.benchmarks.agent_runs` replays recorded runs (`--data FOLDER`; they are not part of the repository)
request by request at windows of 2,000 to 8,192 tokens beside their instructions, with and without a long answer that is
asked for, and counts requests that were refused, and views without the first task although everything else could have
been masked to fit. Then it holds one conversation of 148 turns at a window of 8,192 under `checkpoint`, and counts
its
summary calls and what they read.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.dialects.body.message_edits import truncate_content
from tests.benchmarks.quality.late_use import instructions_tokens
from tests.benchmarks.quality.model import ScriptedModel
from tests.benchmarks.quality.recordings import FOLDER, Message, Run, runs
from tests.benchmarks.quality.summaries import COUNTER, extractive
from tests.benchmarks.quality.talk import Variant, at_rest, talking
from tests.benchmarks.quality.texts import Prose

KINDS: Final = ("fade", "prune", "checkpoint", "window")
ROOMS: Final = (2_000, 4_000, 8_192)
OUTPUTS: Final = (None, 500)
RESERVE_RATIO: Final = 0.05
MASK_CHARS: Final = 300
WINDOW, TURNS, SAID_CHARS, MOST_CALLS = 8_192, 148, 1_500, 40


@dataclass(slots=True)
class Seen:
    """What was sent in place of the requests of some runs."""

    requests: int = 0
    refused: int = 0
    shortened: int = 0
    """Views that are not what the client sent."""
    due: int = 0
    """Of these, those in which everything but the task could be masked to fit …"""
    lost: int = 0
    """… and those of them without the task."""


def masked_tokens(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
    """What a prompt takes with each tool result at its shortest."""
    return COUNTER.count_request([masked(message) for message in messages], tools=tools)


def masked(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    shorter = {**message, "content": truncate_content(message["content"], MASK_CHARS)}
    return min(message, shorter, key=COUNTER.count_message)


def first_task(run: Run) -> Message:
    return next(message for message in run.messages if message["role"] == "user")


async def replay(kind: str, played: Sequence[Run], *, room_tokens: int, output: int | None) -> Seen:
    """Replay runs under a policy.

    Args:
        room_tokens: of the window, what is left beside the instructions.
        output: the longest answer that is asked for.
    """
    model = ScriptedModel(summaries=extractive)
    windows = {run.name: instructions_tokens(run) + room_tokens for run in played}
    models = {name: {"provider": "upstream", "context_window": window} for name, window in windows.items()}
    seen = Seen()
    async with talking(model, Variant(kind, policy=kind), models=models) as client:
        for run in played:
            fields: dict[str, Any] = {"tools": run.tools} if run.tools else {}
            if output is not None:
                fields["max_tokens"] = output
            limit = windows[run.name] - round(windows[run.name] * RESERVE_RATIO) - (output or 0)
            task = first_task(run)["content"]
            for at in run.requests():
                asked = await client.ask(run.messages[:at], place=at, tenant=run.name, model=run.name, **fields)
                seen.requests += 1
                if asked.status != 200:
                    seen.refused += 1
                    continue
                sent = model.answers[-1].messages
                seen.shortened += len(sent) != at or any(a != b for a, b in zip(sent, run.messages, strict=False))
                if masked_tokens(run.messages[:at], run.tools) <= limit:
                    seen.due += 1
                    seen.lost += all(message.get("content") != task for message in sent)
                await at_rest(model)
    return seen


async def checkpoints(turns: int = TURNS, *, prepared: bool) -> dict[str, int]:
    """The summary calls of one conversation under `checkpoint`."""
    prose = Prose(3)
    answers = [prose.of(SAID_CHARS) for _ in range(turns)]
    model = ScriptedModel(reply=lambda body: {"role": "assistant", "content": answers[int(body["x_bench_place"])]})
    history: list[dict[str, Any]] = []
    variant = Variant("checkpoint", policy="checkpoint", changes={} if prepared else {"prepare_ratio": 1.0})
    async with talking(model, variant, window=WINDOW) as client:
        for turn in range(turns):
            history.append({"role": "user", "content": f"({turn}) {prose.of(SAID_CHARS)}"})
            history.append(dict((await client.ask(history, place=turn)).message))
            await at_rest(model)
    return {
        "log_tokens": COUNTER.count_request(history),
        "calls": len(model.summary_calls),
        "read_tokens": sum(call.prompt_tokens for call in model.summary_calls),
        "checkpoints": sum("I want a checkpoint" in str(call.messages[-1]["content"]) for call in model.summary_calls),
    }


async def measure(options: argparse.Namespace, console: Console) -> None:
    table = Table(
        "policy", "tokens beside the instructions", "answer", "requests", "refused", "shortened", "due", "lost"
    )
    played = runs(options.data) if options.data.is_dir() else []
    for kind in KINDS if played else ():
        for room_tokens in ROOMS:
            for output in OUTPUTS:
                seen = await replay(kind, played, room_tokens=room_tokens, output=output)
                facts = (seen.requests, seen.refused, seen.shortened, seen.due, seen.lost)
                table.add_row(kind, f"{room_tokens:,}", str(output or ""), *map(str, facts))
    console.print(table if played else "no recordings: --data FOLDER")
    for prepared in (True, False):
        facts_of_calls = await checkpoints(options.turns, prepared=prepared)
        console.print(
            f"checkpoint, {options.turns} turns, {'prepared' if prepared else 'not prepared'}: {facts_of_calls}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.agent_runs", description=__doc__)
    parser.add_argument("--data", type=Path, default=FOLDER, help="the folder of recordings (default ../shared/eval)")
    parser.add_argument("--turns", type=int, default=TURNS)
    logging.getLogger().setLevel(logging.CRITICAL)
    asyncio.run(measure(parser.parse_args(), Console(width=140)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
