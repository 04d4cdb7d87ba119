"""Fifty questions over ten topics with probes in between: what is sent in each turn that compacts, and which facts are
in reach at the last probe, with summaries that are added, one that is rewritten, and checkpoints side by side.

The simulated model writes the summaries. Recursive ones were seen to grow the input 1,565 → 2,362 → 3,280 → 4,076 over
four compactions, the last probe having lost the early topics.
"""

from __future__ import annotations

import time
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from app.settings.configuration_errors import ConfigurationError
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from demo.script import SYSTEM, TOPICS, conversation
from tests.benchmarks.quality.summaries import COUNTER
from tests.benchmarks.quality.talk import ADDITIVE, Variant
from tests.benchmarks.quality.texts import all_text
from tests.live import gateway, serving

MODEL: Final = "sim-8k"
WINDOW: Final = 8_192
LAST_PROBE: Final = 50
TURNS: Final = 60
VARIANTS: Final = (
    ADDITIVE,
    Variant("additive, recall off", changes={"recall": "off"}),
    Variant("additive, recursive", changes={"strategy": "recursive"}),
    Variant("additive, recursive, recall off", changes={"strategy": "recursive", "recall": "off"}),
    Variant("checkpoint", policy="checkpoint"),
)


@dataclass(frozen=True, slots=True)
class Held:
    """What went to the model for each turn, and how probes were answered. Tokens are those of current models."""

    sent: Sequence[Sequence[Mapping[str, Any]]]
    contexts: Sequence[Mapping[str, Any]]
    probes: Mapping[int, bool]
    summary_tokens: int
    summary_calls: int
    full_tokens: int

    @property
    def sent_tokens(self) -> list[int]:
        return [COUNTER.count_request(messages) for messages in self.sent]

    @property
    def baselines(self) -> list[int]:
        """Tokens of each turn with other summaries than the one before."""
        shown = [[one["id"] for one in context["summaries"]] for context in self.contexts]
        changed = [at for at, (before, after) in enumerate(pairwise(shown), 1) if before != after]
        tokens = self.sent_tokens
        return [tokens[at] for at in changed]

    def facts_at(self, turn: int) -> dict[str, int]:
        """How many facts of each topic are in what was sent for a turn."""
        text = all_text(self.sent[turn - 1])
        return {topic: sum(fact in text for fact, _ in said) for topic, said in TOPICS}

    def share_at(self, turn: int) -> float:
        """Of the facts said before a turn, those that are in what was sent for it."""
        before = "".join(one.text for one in conversation(turn))
        said = [fact for _, facts in TOPICS for fact, _ in facts if fact in before]
        return sum(self.facts_at(turn).values()) / max(1, len(said))


async def hold(variant: Variant, *, turns: int = TURNS) -> Held:
    """Hold the demo's conversation.

    Raises:
        ConfigurationError: the gateway does not know the variant.
    """
    simulator = Simulator(
        SimulatorOptions(max_recorded_requests=10 * turns),
        lambda _: COUNTER,
        clock=time.time,
        new_id=lambda: uuid.uuid4().hex,
    )
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    sent, contexts, probes = [], [], {}
    full_tokens = 0
    async with (
        serving(SimulatorApp(simulator), lifespan="off") as upstream,
        gateway(upstream, window=WINDOW, **variant.sections()) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=30) as client,
    ):
        for turn in conversation(turns):
            messages.append({"role": "user", "content": turn.text})
            full_tokens += COUNTER.count_request(messages)
            answered = await client.post("/chat/completions", json={"model": MODEL, "messages": messages})
            answered.raise_for_status()
            answer = answered.json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            contexts.append(answer["context"])
            sent.append(_last_that_asks(simulator, turn.question))
            if turn.expected is not None:
                probes[turn.number] = turn.expected in str(messages[-1]["content"])
    bodies = [asked["body"] for asked in simulator.recorded_requests if asked["path"] == "/chat/completions"]
    summaries = [body for body in bodies if not any(body["messages"] is asked for asked in sent)]
    tokens = sum(COUNTER.count_request(body["messages"], tools=body.get("tools")) for body in summaries)
    return Held(sent, contexts, probes, tokens, len(summaries), full_tokens)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    results: dict[str, Any] = {}
    table = Table("", "input after each compaction", "facts at the last probe", "at the end", "probes answered")
    for variant in VARIANTS:
        try:
            held = await hold(variant, turns=options.turns)
        except ConfigurationError as error:
            console.print(f"{variant.name} is not there: {str(error).splitlines()[-1]}", markup=False)
            continue
        at_probe, at_end = (held.share_at(min(turn, options.turns)) for turn in (LAST_PROBE, TURNS))
        results[variant.name] = {
            "baselines": held.baselines,
            "facts_at_the_last_probe": held.facts_at(min(LAST_PROBE, options.turns)),
            "share_at_the_last_probe": at_probe,
            "share_at_the_end": at_end,
            "probes": held.probes,
        }
        answered = f"{sum(held.probes.values())} of {len(held.probes)}"
        baselines = " → ".join(f"{one:,}" for one in held.baselines)
        table.add_row(variant.name, baselines, f"{at_probe:.3f}", f"{at_end:.3f}", answered)
    console.print(table)
    return results


def _last_that_asks(simulator: Simulator, question: str) -> Sequence[Mapping[str, Any]]:
    """The newest request whose last message is the user's, with this question."""
    for asked in reversed(simulator.recorded_requests):
        messages: Sequence[Mapping[str, Any]] = asked["body"].get("messages") or ()
        if messages and asked["path"] == "/chat/completions" and str(messages[-1].get("content")).endswith(question):
            return messages
    raise LookupError(question)
