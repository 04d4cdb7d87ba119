"""What arithmetic allows: how few summary calls a conversation can do with if nothing but summaries makes room.

A view that was just compacted holds at least the instructions, a summary and whatever stays verbatim; it grows from
there to the threshold before the next compaction is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Final

from rich.table import Column, Table

THRESHOLD_RATIOS: Final = (0.7, 0.8, 0.9, 0.95)
BUFFER_TURNS: Final = 4
BUFFER_MAX_RATIO: Final = 0.3
Bound = Mapping[str, float]


def bounds(*, growth: int, instructions: int, summary: int, turns: int, window: int) -> list[Bound]:
    """At several thresholds: calls that keep nothing or the buffer beside one rolling summary, and calls whose
    summaries all stay, which leaves less room for growth each time (folds, which are calls too, are not counted).

    Args:
        growth: tokens of all that is said.
        summary: tokens of one summary.
    """
    buffer = min(BUFFER_TURNS * growth / max(1, turns), BUFFER_MAX_RATIO * window)
    found: list[Bound] = []
    for ratio in THRESHOLD_RATIOS:
        soft, kept = ratio * window, instructions + buffer
        rolling = _fewest_calls(growth, soft, kept + summary)
        found.append(
            {
                "threshold": ratio,
                "soft_line": soft,
                "a_summary": summary,
                "calls_keeping_nothing": _fewest_calls(growth, soft, instructions + summary),
                "calls_keeping_the_buffer": rolling,
                "calls_adding_summaries": _fewest_additive_calls(growth, soft, kept, summary),
                "not_cached_in_answers": growth + instructions + rolling * (summary + buffer),
            }
        )
    return found


def table_of(found: Sequence[Bound]) -> Table:
    """Bounds as they are printed."""
    titles = (name.replace("_", " ") for name in found[0])
    table = Table(*(Column(title, justify="right") for title in titles), title="The least there can be")
    for row in found:
        table.add_row(*(_figure(value) for value in row.values()))
    return table


def _fewest_calls(growth: float, soft: float, base: float) -> float:
    return max(0, ceil((growth - soft) / (soft - base)) + 1) if soft > base else inf


def _fewest_additive_calls(growth: float, soft: float, base: float, summary: float) -> float:
    """As above, where every summary stays; infinite where they leave no room before all is said."""
    calls, reached = 0, soft
    while reached < growth:
        calls += 1
        room = soft - base - summary * calls
        if room <= 0:
            return inf
        reached += room
    return calls


def _figure(value: float) -> str:
    return "–" if value == inf else f"{value:,.0f}" if value > 1 else f"{value:g}"
