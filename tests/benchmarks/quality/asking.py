"""Options, runs and tables of the instruments that hold generated talks and ask about them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Column, Table

from tests.benchmarks.quality.spread import Spread, add_seed_options, list_seeds
from tests.benchmarks.quality.summaries import SUMMARIES
from tests.benchmarks.quality.talk import NotThere, Variant
from tests.benchmarks.quality.talks import Outcome, Talk, hold_talk, keep_newest

WINDOWS: Final = (2_000, 4_000, 8_000)
KEEP_NEWEST: Final = "newest only"


def add_talk_options(parser: ArgumentParser, windows: Sequence[int] = WINDOWS) -> None:
    """Adds the options that all these instruments have."""
    parser.add_argument("--windows", type=int, nargs="+", default=windows)
    parser.add_argument("--summaries", choices=SUMMARIES, nargs="+", default=["extractive"])
    parser.add_argument("--policies", nargs="+", default=["additive"])
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="changes of the policies")
    parser.add_argument("--misses", action="store_true", help="list the questions that could not be answered")
    add_seed_options(parser)


def read_variants(options: Namespace) -> list[Variant]:
    """Returns the chosen policies with the chosen changes."""
    changes = {name: orjson.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    return [Variant(" ".join([policy, *options.set]), policy=policy, changes=changes) for policy in options.policies]


async def ask_about(
    build: Callable[[int], Talk], options: Namespace, console: Console, *, shows_steps: bool = False
) -> dict[str, Any]:
    """Holds one talk for each seed, window, policy and kind of summaries, and prints a table.

    Args:
        build: makes the talk of a seed.
        shows_steps: whether the table also tells which share of a question's evidence was there.
    """
    seeds = list_seeds(options)
    talks = [build(seed) for seed in seeds]
    turns, tokens, questions = (
        Spread([measure(talk) for talk in talks]).render(",.0f")
        for measure in (lambda talk: len(talk.messages), lambda talk: talk.tokens, lambda talk: len(talk.questions))
    )
    console.print(f"seeds {seeds[0]} to {seeds[-1]}: {turns} messages, {tokens} tokens, {questions} questions")
    rows: dict[tuple[int, str, str], list[Outcome]] = {}
    for window in options.windows:
        rows[window, KEEP_NEWEST, ""] = [keep_newest(talk, window=window) for talk in talks]
        for variant in read_variants(options):
            for summaries in options.summaries:
                try:
                    held = [await hold_talk(variant, talk, window=window, summaries=summaries) for talk in talks]
                except NotThere as error:
                    console.print(f"{variant.name} is not there: {str(error).splitlines()[-1]}", markup=False)
                    break
                rows[window, variant.name, summaries] = held
    console.print(build_outcome_table(rows, shows_steps=shows_steps))
    if options.misses:
        _print_misses(rows, console)
    return {"seeds": seeds, "rows": {" ".join(map(str, key)): _list_facts(held) for key, held in rows.items()}}


def build_outcome_table(rows: Mapping[tuple[int, str, str], Sequence[Outcome]], *, shows_steps: bool) -> Table:
    """Returns a table with a column for each kind of question."""
    first = next(iter(rows.values()))
    kinds = list(dict.fromkeys(question.kind for outcome in first for question in outcome.talk.questions))
    kind_columns = kinds if len(kinds) > 1 else []
    names = ["window", "policy", "summaries", "answered", *kind_columns, *(["steps"] if shows_steps else [])]
    costs = ("only in\nlists", "prompt\ntokens", "quoted\ntokens", "summary\ncalls", "failed\nturns")
    table = Table(
        *(Column(name, justify="left" if at in {1, 2} else "right", no_wrap=True) for at, name in enumerate(names)),
        *(Column(name, justify="right") for name in costs),
        caption="mean ± half the range of the seeds; answered: all that the answer needs is in the prompt",
        caption_justify="left",
    )
    for (window, policy, summaries), held in rows.items():
        shares = [held_share(held, kind) for kind in (None, *kind_columns)]
        steps = [_render_mean(held, "share", ".3f")] if shows_steps else []
        table.add_row(
            f"{window:,}",
            policy,
            summaries,
            *shares,
            *steps,
            _render_mean(held, "is_only_listed", ".3f"),
            _render_mean(held, "prompt_tokens", ",.0f"),
            _render_mean(held, "quoted_tokens", ",.0f"),
            Spread([outcome.summary_calls for outcome in held]).render(".1f"),
            str(sum(outcome.failed_turns for outcome in held)),
        )
    return table


def held_share(held: Sequence[Outcome], kind: str | None) -> str:
    """Returns the share of answered questions of a kind, or of all, as it is printed."""
    return Spread([outcome.compute_share(kind) for outcome in held]).render()


def _render_mean(held: Sequence[Outcome], name: str, form: str) -> str:
    return Spread([outcome.compute_mean(name) for outcome in held]).render(form)


def _list_facts(held: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "seed_name": outcome.talk.name,
            "answered": outcome.compute_share(),
            "kinds": {
                kind: outcome.compute_share(kind)
                for kind in dict.fromkeys(question.kind for question in outcome.talk.questions)
            },
            "steps": outcome.compute_mean("share"),
            "only_in_lists": outcome.compute_mean("is_only_listed"),
            "prompt_tokens": outcome.compute_mean("prompt_tokens"),
            "quoted_tokens": outcome.compute_mean("quoted_tokens"),
            "summary_calls": outcome.summary_calls,
            "failed_turns": outcome.failed_turns,
            "misses": [_render_miss(outcome, at) for at, one in enumerate(outcome.verdicts) if not one.is_answered],
        }
        for outcome in held
    ]


def _render_miss(outcome: Outcome, at: int) -> str:
    verdict = outcome.verdicts[at]
    needed = " | ".join(f"{one.date} {one.words}".strip() for one in verdict.question.evidence)
    found = f"{verdict.there} of {len(verdict.question.evidence)}"
    return f"{verdict.question.kind}: {verdict.question.text} → {needed} ({found})"


def _print_misses(rows: Mapping[tuple[int, str, str], Sequence[Outcome]], console: Console) -> None:
    for (window, policy, summaries), held in rows.items():
        if policy == KEEP_NEWEST:
            continue
        for outcome in held:
            for at, one in enumerate(outcome.verdicts):
                if not one.is_answered:
                    told = f"{window} {summaries} {outcome.talk.name}: {_render_miss(outcome, at)}"
                    console.print(told, markup=False, highlight=False)
