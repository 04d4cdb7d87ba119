"""Rates from counters that only grow, and how they went in the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

RATE_WINDOW_SECONDS: Final = 15.0
"""Rates are those of so long: with several workers, their totals come together in jumps."""
HOUR_SECONDS: Final = 3600.0
RATED_TOTALS: Final = ("requests", "errors", "prompt_tokens", "completion_tokens")


class TotalRates:
    """How fast totals grow, from one look to the next; from the gateway's own samples while there is only one."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque()
        self._series: Mapping[str, Any] = {}

    def add_overview(self, overview: Mapping[str, Any], now_seconds: float) -> None:
        """Take note of what an overview tells at a moment of a clock that only goes forward."""
        totals = {name: float(overview["totals"].get(name) or 0) for name in RATED_TOTALS}
        if self._samples and any(totals[name] < self._samples[-1][1][name] for name in RATED_TOTALS):
            self._samples.clear()
        self._samples.append((now_seconds, totals))
        while len(self._samples) > 2 and now_seconds - self._samples[1][0] >= RATE_WINDOW_SECONDS:
            self._samples.popleft()
        self._series = overview.get("series") or {}

    def rate_per_second(self, name: str) -> float | None:
        """How much a total grows in a second, of late; None while that cannot be told."""
        if len(self._samples) > 1:
            (began, first), (ended, last) = self._samples[0], self._samples[-1]
            return (last[name] - first[name]) / max(1e-3, ended - began)
        samples = self._series.get("samples") or []
        grown = compute_increments(samples[-2:], name)
        return grown[-1] / float(self._series["interval_seconds"]) if grown else None


def compute_increments(samples: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """By how much a total grew from sample to sample; nothing where it is not sampled. A restart begins at zero."""
    values = [float(sample[name]) for sample in samples if sample.get(name) is not None]
    if len(values) < len(samples):
        return []
    return [now if now < then else now - then for then, now in pairwise(values)]


def fit_to_columns(values: Sequence[float | None], columns: int, per_hour: int) -> list[float | None]:
    """The last hour in so many columns, the newest at the right: of each the largest; None where there is nothing.

    Args:
        values: evenly spaced, `per_hour` of them in an hour; None where nothing was seen.
    """
    recent = list(values[-per_hour:])
    hour = [None] * (per_hour - len(recent)) + recent
    column_values: list[float | None] = []
    for column in range(columns):
        start = column * per_hour // columns
        known = [
            value for value in hour[start : max(start + 1, (column + 1) * per_hour // columns)] if value is not None
        ]
        column_values.append(max(known) if known else None)
    return column_values
