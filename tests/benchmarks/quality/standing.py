"""Whether rules that the user set long ago ("always", "never", "from now on", "call me") still reach the model.

`standing_talk` tells how the talks are made. At the end three ordinary questions are asked, and each rule is looked
for, word for word, in the messages that reached the model; the summaries are useless (nonsense, or failing) unless
`--summaries` says otherwise. `wrong` is the share of replaced rules that are shown without the newer one, `distr.` the
share of sentences shown that only look like rules: fewer is better.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from app.compaction.acceptance.values_appendix import strip_appendix
from tests.benchmarks.quality.asking import KEEP_NEWEST, add_talk_options, read_variants
from tests.benchmarks.quality.spread import Spread, list_seeds
from tests.benchmarks.quality.standing_talk import RULES, Rule, StandingTalk, build_standing_talk
from tests.benchmarks.quality.summaries import COUNTER
from tests.benchmarks.quality.talk import NotThere, Variant
from tests.benchmarks.quality.talks import cut_to_newest, hold_talk
from tests.benchmarks.quality.texts import all_text, normalised

WINDOWS: Final = (2_000, 4_000, 8_000)
KINDS: Final = (*RULES, "newer")


@dataclass(slots=True)
class Shown:
    """What the prompts at the end of one talk held: a figure by its name for each prompt."""

    prompts: list[Mapping[str, float]] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    summary_calls: int = 0
    failed_turns: int = 0

    def compute_mean(self, name: str) -> float:
        """Returns the mean of a figure over the prompts."""
        return sum(one[name] for one in self.prompts) / max(1, len(self.prompts))


def look_for_rules(made: StandingTalk, messages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns which shares of a talk's rules, replaced rules and distractors a prompt holds."""
    text = normalised(strip_appendix(all_text(messages)))

    def share(rules: Sequence[Rule]) -> float:
        return sum(normalised(rule.sentence) in text for rule in rules) / max(1, len(rules))

    wrong = [normalised(rule.sentence) in text and normalised(rule.replaced_by) not in text for rule in made.replaced]
    distractors = [normalised(sentence) in text for sentence in made.distractors]
    places = {place: share([rule for rule in made.rules if rule.place == place]) for place in ("top", "middle")}
    kinds = {kind: share([rule for rule in made.rules if rule.kind == kind]) for kind in KINDS}
    return {
        **places,
        **kinds,
        "wrong": sum(wrong) / max(1, len(wrong)),
        "distractors": sum(distractors) / max(1, len(distractors)),
        "prompt": COUNTER.count_request(messages),
    }


async def measure(variant: Variant, made: StandingTalk, *, window: int, summaries: str) -> Shown:
    """Hold a talk and look for its rules at its end.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    outcome = await hold_talk(variant, made.talk, window=window, summaries=summaries)
    shown = Shown(summary_calls=outcome.summary_calls, failed_turns=outcome.failed_turns)
    for call in outcome.calls:
        shown.prompts.append(look_for_rules(made, call.messages))
    if outcome.calls:
        text = normalised(strip_appendix(all_text(outcome.calls[0].messages)))
        shown.misses = [
            f"{rule.place} {rule.kind}: {rule.sentence}" for rule in made.rules if normalised(rule.sentence) not in text
        ]
    return shown


def keep_newest(made: StandingTalk, *, window: int) -> Shown:
    """Returns what the newest messages that fit into the window would have held."""
    prompts = [cut_to_newest(made.talk, question.text, window=window) for question in made.talk.questions]
    return Shown([look_for_rules(made, prompt) for prompt in prompts])


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser, WINDOWS)
    parser.set_defaults(summaries=["nonsense", "failing"])


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    seeds = list_seeds(options)
    talks = [build_standing_talk(seed) for seed in seeds]
    rows: dict[tuple[int, str, str], list[Shown]] = {}
    for window in options.windows:
        rows[window, KEEP_NEWEST, ""] = [keep_newest(made, window=window) for made in talks]
        for variant in read_variants(options):
            for summaries in options.summaries:
                try:
                    found = [await measure(variant, made, window=window, summaries=summaries) for made in talks]
                except NotThere as error:
                    console.print(f"{variant.name} is not there: {str(error).splitlines()[-1]}", markup=False)
                    break
                rows[window, variant.name, summaries] = found
    tokens = Spread([made.talk.tokens for made in talks]).render(",.0f")
    console.print(f"seeds {seeds[0]} to {seeds[-1]}: {tokens} tokens, {len(talks[0].rules)} rules")
    console.print(_build_table(rows))
    if options.misses:
        for (window, _, summaries), found in rows.items():
            for shown in found:
                for miss in shown.misses:
                    console.print(f"{window} {summaries} {miss}", markup=False, highlight=False)
    return {
        "seeds": seeds,
        "rows": {
            " ".join(map(str, key)): [
                {"prompts": one.prompts, "misses": one.misses, "summary_calls": one.summary_calls} for one in found
            ]
            for key, found in rows.items()
        },
    }


def _build_table(rows: Mapping[tuple[int, str, str], Sequence[Shown]]) -> Table:
    columns: Sequence[tuple[str, str, str]] = (
        ("top", "top", ".2f"),
        ("middle", "middle", ".2f"),
        *((kind[:8], kind, ".2f") for kind in KINDS),
        ("wrong", "wrong", ".2f"),
        ("distr.", "distractors", ".2f"),
        ("prompt\ntokens", "prompt", ",.0f"),
    )
    table = Table(
        "window",
        "policy",
        "summaries",
        *(Column(title, justify="right") for title, _, _ in columns),
        "calls",
        "failed",
        caption="mean ± half the range of the seeds; wrong: replaced rules that are shown without the newer one",
        caption_justify="left",
    )
    for (window, policy, summaries), found in rows.items():
        figures = (Spread([one.compute_mean(name) for one in found]).render(form) for _, name, form in columns)
        calls = Spread([one.summary_calls for one in found]).render(".1f")
        table.add_row(f"{window:,}", policy, summaries, *figures, calls, str(sum(one.failed_turns for one in found)))
    return table
