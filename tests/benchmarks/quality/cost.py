"""What the demo's sixty turns cost beside sending the whole history each time: prompt tokens of answers and of summary
calls, and how many summary calls there are to a compaction. The simulated model answers and summarizes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, Final

from rich.console import Console

from tests.benchmarks.quality.poc import TURNS, hold
from tests.benchmarks.quality.talk import ADDITIVE, Variant

MOST_COST: Final = 0.45


async def measure(variant: Variant = ADDITIVE, *, turns: int = TURNS) -> dict[str, float | int]:
    """Hold the demo's conversation. Tokens are those of current models."""
    held = await hold(variant, turns=turns)
    sent = sum(held.sent_tokens)
    return {
        "share": (sent + held.summary_tokens) / held.full_tokens,
        "full_history_tokens": held.full_tokens,
        "sent_for_answers": sent,
        "sent_for_summaries": held.summary_tokens,
        "summary_calls": held.summary_calls,
        "compactions": len(held.baselines),
        "probes_answered": sum(held.probes.values()),
        "probes": len(held.probes),
    }


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    found = await measure(turns=options.turns)
    console.print(f"sent {found.pop('share'):.1%} of what full histories take (≤ {MOST_COST:.0%})")
    for name, value in found.items():
        console.print(f"  {name.replace('_', ' ')}: {value:,}")
    return found
