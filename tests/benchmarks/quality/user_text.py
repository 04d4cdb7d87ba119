"""Whether what the user said long ago still reaches the model, word for word, and nobody else's words as the user's.

`user_text_talk` tells what the scenes have. A client re-sends the history as it grows, in ten steps, and asks a last
question. `shown` is the share of rules in the prompt; `alone` the share of withdrawn rules that stand without their
withdrawal; `foreign` the share of others' rules that stand as the user's: both should be 0. The summaries are useless
(nonsense, or failing) unless `--summaries` says otherwise.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from app.compaction.acceptance.values_appendix import strip_appendix
from tests.benchmarks.quality.asking import add_talk_options, read_variants
from tests.benchmarks.quality.model import ScriptedModel
from tests.benchmarks.quality.spread import Spread, list_seeds
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES
from tests.benchmarks.quality.talk import NotThere, Variant, at_rest, talking
from tests.benchmarks.quality.texts import all_text, normalised
from tests.benchmarks.quality.user_text_talk import SCENES, Scene, build_scene

STEPS: Final = 10
WINDOWS: Final = {"agents.md": 8_000, "reminder": 8_000, "sentences": 8_000, "one a turn": 8_000}
WINDOW: Final = 3_000
SAID: Final = re.compile(r"<user_said>\n(.*?)\n?</user_said>", re.DOTALL)
"""The message in which the gateway shows what the user said."""


async def measure(variant: Variant, scene: Scene, *, window: int, summaries: str) -> dict[str, Any]:
    """Holds a conversation and looks for its rules at its end.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    openings = [at for at, one in enumerate(scene.messages) if one["role"] == "user"]
    ends = sorted({openings[(len(openings) - 1) * step // STEPS] for step in range(STEPS + 1)})

    def reply(body: Mapping[str, Any]) -> Mapping[str, Any]:
        later = scene.messages[body["x_bench_place"] + 1 :]
        return later[0] if later and later[0]["role"] == "assistant" else {"role": "assistant", "content": "Yes."}

    model = ScriptedModel(summaries=SUMMARIES[summaries], reply=reply)
    failed = 0
    async with talking(model, variant, window=window) as client:
        for end in ends:
            asked = await client.ask(scene.messages[: end + 1], place=end)
            failed += asked.status != 200
            await at_rest(model)
    sent = model.answers[-1].messages if model.answers else []
    return look_for_rules(scene, sent) | {"failed": failed, "told": asked.context.get("user_text")}


def look_for_rules(scene: Scene, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the shares of a scene's rules that a prompt shows, shows alone, or shows as another's."""
    raw = strip_appendix(all_text(messages))
    text = normalised(raw)
    said = "\n".join(SAID.findall(raw))
    missed = [rule for rule in scene.rules if normalised(rule) not in text]
    alone = [rule for rule, end in scene.withdrawn if normalised(rule) in text and normalised(end) not in text]
    foreign = [one for one in scene.foreign if normalised(one) in normalised(said)]
    for line in said.splitlines():
        foreign += [
            rule
            for name, rules in scene.others.items()
            for rule in rules
            if rule in line and not line.startswith(f"- {name}: ")
        ]
    return {
        "shown": 1 - len(missed) / len(scene.rules) if scene.rules else None,
        "alone": len(alone) / len(scene.withdrawn) if scene.withdrawn else None,
        "foreign": len(foreign) / len(scene.foreign) if scene.foreign else None,
        "said": COUNTER.count(said),
        "prompt": COUNTER.count_request(messages),
        "misses": [*missed, *(f"alone: {one}" for one in alone), *(f"foreign: {one}" for one in foreign)],
    }


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.set_defaults(summaries=["nonsense"], windows=[])


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    seeds = list_seeds(options)
    columns = ("shown", "alone", "foreign", "said", "prompt")
    table = Table(
        "scene", "window", "policy", "summaries", *(Column(one, justify="right") for one in columns), "failed"
    )
    results: dict[str, Any] = {"seeds": seeds, "rows": {}}
    for name in options.scenes:
        for window in options.windows or [WINDOWS.get(name, WINDOW)]:
            for variant in read_variants(options):
                for summaries in options.summaries:
                    scenes = [build_scene(name, seed) for seed in seeds]
                    try:
                        found = [await measure(variant, one, window=window, summaries=summaries) for one in scenes]
                    except NotThere as error:
                        console.print(f"{variant.name} is not there: {str(error).splitlines()[-1]}", markup=False)
                        continue
                    figures = (_render_figure(found, column) for column in columns)
                    failed = str(sum(one["failed"] for one in found))
                    table.add_row(name, f"{window:,}", variant.name, summaries, *figures, failed)
                    results["rows"][f"{name} {window} {variant.name} {summaries}"] = found
    console.print(table)
    if options.misses:
        for key, found in results["rows"].items():
            for one in found:
                for miss in one["misses"]:
                    console.print(f"{key}: {miss}", markup=False, highlight=False)
    return results


def _render_figure(found: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [one[name] for one in found if one[name] is not None]
    return Spread(values).render(",.0f" if name in {"said", "prompt"} else ".2f") if values else ""
