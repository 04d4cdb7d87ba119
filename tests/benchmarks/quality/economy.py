"""What long conversations cost in tokens: several kinds of talk at a window of 8,192, the whole history re-sent.

In 300 turns of kind `office` every third calls a tool (the call, its result, then the answer: two requests), and the
client sends about 17.9 million tokens in all, four characters each. `economy_kinds` tells the other kinds. The model
counts like that too and reports what a simulated prompt cache of its own would have served; each summary is about 120
words. The client thinks between turns until no summary is being written, so that what is prepared ahead can be ready;
with `--answer-seconds` it asks again at once.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Column, Table

from tests.benchmarks.quality.bounds import Bound, bounds, table_of
from tests.benchmarks.quality.cache import PrefixCache, common_prefix
from tests.benchmarks.quality.economy_kinds import KINDS, build_script
from tests.benchmarks.quality.model import Call, ScriptedModel, by_length
from tests.benchmarks.quality.spread import Spread, add_seed_options, list_seeds
from tests.benchmarks.quality.summaries import ordinary
from tests.benchmarks.quality.talk import ADDITIVE, POLICIES, Asked, NotThere, Variant, talking
from tests.benchmarks.quality.texts import serialized

WINDOW: Final = 8_192
TURNS: Final = 300
SUMMARY_SECONDS: Final = 0.05
WAITED_SHARE: Final = 0.5
"""Of a summary call, spent by a question on its way to the model: it waited. One that is written beside it is none."""
LEAST_CACHED_PROMPT: Final = 1_024
"""Shorter prompts are never cached."""
SYSTEM: Final = {
    "role": "system",
    "content": "You are the assistant of a team that runs the systems of a mid-sized trading company. " * 3,
}
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up in the records of the company.",
            "parameters": {
                "type": "object",
                "properties": {"topic": {"type": "string"}, "since": {"type": "string"}},
                "required": ["topic"],
            },
        },
    }
]
MOST_UNCACHED, MOST_SUMMARY_CALLS, LEAST_STABLE_PREFIX, LEAST_CACHED = 130_000, 25, 0.93, 0.85
OFFICE_SEED: Final = 7
NO_PREPARATION: Final = {"prepare_ratio": 1.0}

VARIANTS: Final = (
    ADDITIVE,
    Variant("additive, not prepared", changes=NO_PREPARATION),
    Variant("additive, recall off", changes={"recall": "off"}),
    Variant("additive, recall off, not prepared", changes={"recall": "off", **NO_PREPARATION}),
    Variant("additive, recall tool", changes={"recall": "tool"}),
    *POLICIES[1:],
)


@dataclass(slots=True)
class Held:
    """The conversation as it went."""

    window: int
    model: ScriptedModel
    summary_seconds: float
    history: list[dict[str, Any]] = field(default_factory=lambda: [dict(SYSTEM)])
    turns: list[Sequence[Asked]] = field(default_factory=list)
    client_tokens: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        return [serialized(call.messages, orjson.dumps) for call in self.model.answers]

    def stable_prefixes(self) -> list[float]:
        """Of each prompt but the last, the share with which the next one begins."""
        return [common_prefix(before, after) / len(before) for before, after in pairwise(self.prompts)]

    def uncut(self) -> list[Call]:
        """Requests that begin with the whole request before them."""
        calls = self.model.answers
        return [call for call, share in zip(calls[1:], self.stable_prefixes(), strict=True) if share == 1.0]

    def stalled(self) -> int:
        """Turns in which a question waited for a summary on its way to the model."""
        return sum(any(self._waited(asked) for asked in turn) for turn in self.turns)

    def _waited(self, asked: Asked) -> bool:
        reached = [call.began for call in self.model.answers if asked.began <= call.began <= asked.ended]
        until = reached[-1] if reached else asked.ended
        together = (min(until, call.ended) - max(asked.began, call.began) for call in self.model.summary_calls)
        return any(seconds >= WAITED_SHARE * self.summary_seconds for seconds in together)


async def hold(
    variant: Variant,
    *,
    turns: int = TURNS,
    window: int = WINDOW,
    kind: str = "office",
    seed: int = OFFICE_SEED,
    answer_seconds: float | None = None,
    summary_seconds: float = SUMMARY_SECONDS,
) -> Held:
    """Hold a conversation.

    Args:
        turns: of kind `office`; other kinds have fewer turns that are longer.
        answer_seconds: how long an answer takes, if the client asks again at once; None: no time, and the client waits
            until no summary is being written.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    script = build_script(kind, seed, turns)
    tools: dict[str, Any] = {"tools": TOOLS} if script.has_tools else {}
    model = ScriptedModel(
        reply=script.build_reply,
        summaries=ordinary,
        summary_seconds=summary_seconds,
        answer_seconds=answer_seconds or 0.0,
        count=by_length,
        cache=PrefixCache(),
    )
    held = Held(window, model, summary_seconds)
    async with talking(model, variant, window=window) as client:
        for turn in range(len(script.turns)):
            held.history.append({"role": "user", "content": script.turns[turn].question})
            asked: list[Asked] = []
            for step in range(script.count_requests(turn)):
                if step:
                    held.history.append(script.build_result(turn, step - 1))
                held.client_tokens += by_length({"messages": held.history})
                answer = await client.ask(held.history, place=(turn, step), **tools)
                asked.append(answer)
                if answer.status != 200:
                    held.errors.append(f"turn {turn}: {answer.status} {answer.body}")
                    held.history.append(dict(script.build_reply({"x_bench_place": (turn, step)})))
                else:
                    held.history.append(dict(answer.message))
            held.turns.append(asked)
            if answer_seconds is None:
                await client.wait_for_background_tasks()
    return held


def facts_of(held: Held) -> dict[str, Any]:
    """The figures of a conversation; tokens are the model's."""
    model = held.model
    answers, summaries, uncut = model.answers, model.summary_calls, held.uncut()
    prompts = [call.prompt_tokens for call in answers]
    shares = held.stable_prefixes()
    warm = [call for call in uncut if call.prompt_tokens >= LEAST_CACHED_PROMPT]
    return {
        "client_tokens": held.client_tokens,
        "growth_tokens": by_length({"messages": held.history}),
        "upstream_tokens": sum(call.prompt_tokens for call in model.calls),
        "uncached_tokens": _uncached(model.calls),
        "uncached_of_answers": _uncached(answers),
        "uncached_of_summaries": _uncached(summaries),
        "summary_calls": len(summaries),
        "summary_prompt_tokens": sum(call.prompt_tokens for call in summaries),
        "stalled_turns": held.stalled(),
        "stable_prefix": sum(shares) / max(1, len(shares)),
        "cuts": len(shares) - len(uncut),
        "cached_between_cuts": sum(call.cached_tokens for call in warm)
        / max(1, sum(call.prompt_tokens for call in warm)),
        "cached_overall": sum(call.cached_tokens for call in answers) / max(1, sum(prompts)),
        "largest_prompt": max(call.prompt_tokens for call in model.calls),
        "over_the_window": sum(call.prompt_tokens > held.window for call in model.calls),
        "statuses": sorted({str(asked.body.get("context_status")) for turn in held.turns for asked in turn}),
        "errors": held.errors,
    }


def bounds_of(held: Held) -> list[Bound]:
    """What arithmetic allows for a conversation, with summaries as long as they were."""
    sizes = {one["id"]: one["tokens"] for turn in held.turns for asked in turn for one in asked.summaries}
    return bounds(
        growth=by_length({"messages": held.history[1:]}),
        instructions=by_length({"messages": held.history[:1]}),
        summary=round(sum(sizes.values()) / max(1, len(sizes))),
        turns=len(held.turns),
        window=held.window,
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", help="variants whose names hold this (default: policy additive as it is)")
    parser.add_argument("--exactly", help="the one variant of this name")
    parser.add_argument("--all", action="store_true", help="all variants")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of talk")
    parser.add_argument("--turns", type=int, default=TURNS, help="of kind office; the others have fewer, longer turns")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="changes of policy additive")
    parser.add_argument("--answer-seconds", type=float, help="of an answer; the client then asks again at once")
    parser.add_argument("--summary-seconds", type=float, default=SUMMARY_SECONDS)
    add_seed_options(parser)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    seeds = list_seeds(options)
    results: dict[str, Any] = {"seeds": seeds, "kinds": {}}
    for kind in options.kinds:
        rows: dict[str, list[dict[str, Any]]] = {}
        first = None
        for variant in _choose_variants(options):
            try:
                for seed in seeds:
                    held = await hold(
                        variant,
                        turns=options.turns,
                        window=options.window,
                        kind=kind,
                        seed=seed,
                        answer_seconds=options.answer_seconds,
                        summary_seconds=options.summary_seconds,
                    )
                    first = first or held
                    rows.setdefault(variant.name, []).append(facts_of(held))
            except NotThere as error:
                told = f"{variant.name} is not there: {str(error).splitlines()[-1]}"
                console.print(told, markup=False, highlight=False)
        console.print(_build_table(kind, seeds, rows))
        for name, facts in rows.items():
            for told in [one for facts_of_seed in facts for one in facts_of_seed["errors"]][:3]:
                console.print(f"{name}: {told}"[:300], markup=False)
        results["kinds"][kind] = dict(rows)
        if first is not None and options.all:
            results["kinds"][kind]["bounds"] = bounds_of(first)
            console.print(table_of(bounds_of(first)))
    return results


def _choose_variants(options: Namespace) -> Sequence[Variant]:
    if options.set:
        changes = {name: orjson.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
        return [Variant(" ".join(options.set), changes=changes)]
    if not (options.only or options.exactly or options.all):
        return [ADDITIVE]
    return [one for one in VARIANTS if (options.only or "") in one.name and options.exactly in {None, one.name}]


def _build_table(kind: str, seeds: Sequence[int], results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """One row for each variant: means of the seeds, with half the range."""
    columns: Sequence[tuple[str, str, str]] = (
        ("sent to\nmodel", "upstream_tokens", ",.0f"),
        (f"not cached\n≤ {MOST_UNCACHED:,} ‡", "uncached_tokens", ",.0f"),
        ("of that,\nanswers", "uncached_of_answers", ",.0f"),
        (f"calls\n≤ {MOST_SUMMARY_CALLS} ‡", "summary_calls", ".1f"),
        ("stalls\n0 *", "stalled_turns", ".1f"),
        (f"stable\n≥ {LEAST_STABLE_PREFIX}", "stable_prefix", ".3f"),
        ("cuts", "cuts", ".1f"),
        (f"cached †\n≥ {LEAST_CACHED}", "cached_between_cuts", ".3f"),
        ("largest\nprompt", "largest_prompt", ",.0f"),
        ("over\nwindow", "over_the_window", ".1f"),
    )
    rows = [facts for seeds_of_variant in results.values() for facts in seeds_of_variant]
    sent, new = (Spread([row[name] for row in rows]).mean for name in ("client_tokens", "growth_tokens"))
    table = Table(
        "",
        *(Column(title, justify="right", no_wrap=True) for title, _, _ in columns),
        Column("errors", justify="right"),
        title=f"{kind}, seeds {seeds[0]} to {seeds[-1]}: {sent:,.0f} tokens sent by the client, {new:,.0f} of them new",
        caption="mean ± half the range of the seeds   * where summaries are prepared ahead   "
        "† of prompts that begin with the one before, share of tokens   ‡ of kind office",
        title_justify="left",
        caption_justify="left",
    )
    for name, facts in results.items():
        figures = (Spread([one[key] for one in facts]).render(form) for _, key, form in columns)
        table.add_row(name, *figures, str(sum(len(one["errors"]) for one in facts)))
    return table


def _uncached(calls: Sequence[Call]) -> int:
    return sum(call.prompt_tokens - call.cached_tokens for call in calls)
