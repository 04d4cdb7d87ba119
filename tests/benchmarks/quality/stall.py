"""How long the first byte of a streamed answer takes in turns that need a summary, which takes five seconds, beside
ordinary turns; with summaries prepared ahead and without."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.quality.model import ScriptedModel
from tests.benchmarks.quality.summaries import ordinary
from tests.benchmarks.quality.talk import Asked, Variant, at_rest, talking
from tests.benchmarks.quality.texts import Prose

WINDOW: Final = 8_192
SUMMARY_SECONDS: Final = 5.0
TURNS: Final = 18
QUESTION_CHARS: Final = 3_000
CUT_SHARE: Final = 0.9
"""A prompt below this share of the one before was cut."""
WAITING: Final = {"prepare_ratio": 1.0, "blocking": True}
VARIANTS: Final = (Variant("prepared ahead"), Variant("not prepared, blocking", changes=WAITING))


async def measure(
    variant: Variant, *, turns: int = TURNS, summary_seconds: float = SUMMARY_SECONDS
) -> dict[str, float | int]:
    """Hold a conversation that is streamed; the client waits between turns until no summary is being written."""
    model = ScriptedModel(summaries=ordinary, summary_seconds=summary_seconds)
    prose = Prose(3)
    history: list[dict[str, Any]] = []
    ordinary_turns: list[float] = []
    cutting_turns: list[float] = []
    async with talking(model, variant, window=WINDOW) as client:
        for _ in range(turns):
            history.append({"role": "user", "content": prose.of(QUESTION_CHARS)})
            asked = await client.ask(history, stream=True)
            history.append({"role": "assistant", "content": "All right, thank you for telling me."})
            (cutting_turns if _was_cut(model) else ordinary_turns).append(_milliseconds(model, asked))
            await at_rest(model)
    return {
        "ordinary_ms": median(ordinary_turns),
        "slowest_ordinary_ms": max(ordinary_turns),
        "cutting_turns": len(cutting_turns),
        "slowest_cutting_ms": max(cutting_turns, default=0.0),
        "summary_calls": len(model.summary_calls),
    }


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--summary-seconds", type=float, default=SUMMARY_SECONDS)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    results = {}
    table = Table(
        "", "ordinary turn", "slowest ordinary", "turns after which less is shown", "slowest of these", "calls"
    )
    for variant in VARIANTS:
        found = await measure(variant, turns=options.turns, summary_seconds=options.summary_seconds)
        results[variant.name] = found
        times = [f"{found[name]:,.0f} ms" for name in ("ordinary_ms", "slowest_ordinary_ms", "slowest_cutting_ms")]
        table.add_row(variant.name, *times[:2], str(found["cutting_turns"]), times[2], str(found["summary_calls"]))
    console.print(table)
    console.print(f"time to the model's first words; a summary takes {options.summary_seconds:g} s")
    return results


def _was_cut(model: ScriptedModel) -> bool:
    answers = model.answers
    return len(answers) > 1 and answers[-1].prompt_tokens < CUT_SHARE * answers[-2].prompt_tokens


def _milliseconds(model: ScriptedModel, asked: Asked) -> float:
    """From the question to the first byte of the model's own answer: what tells of a compaction comes before it."""
    return (max(asked.first_byte, model.answers[-1].began) - asked.began) * 1000
