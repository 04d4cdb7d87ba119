"""Computes rates from totals that only grow, and fits the values of the last hour to the columns of a sparkline."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

RATE_WINDOW_SECONDS: Final = 15.0
"""Rates are averages over this time. It smooths the totals of several workers, which grow in jumps."""
HOUR_SECONDS: Final = 3600.0
RATED_TOTALS: Final = ("requests", "errors", "prompt_tokens", "completion_tokens")


class TotalRates:
    """Computes how fast totals grow, from the overviews that were fetched; while there is only one overview, from the
    samples in it."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque()
        self._series: Mapping[str, Any] = {}

    def add_overview(self, overview: Mapping[str, Any], now_seconds: float) -> None:
        """Adds the totals of an overview that was fetched at `now_seconds` of a monotonic clock."""
        totals = {name: float(overview["totals"].get(name) or 0) for name in RATED_TOTALS}
        # The gateway has restarted and counts from 0: differences to the samples before would be negative.
        if self._samples and any(totals[name] < self._samples[-1][1][name] for name in RATED_TOTALS):
            self._samples.clear()
        self._samples.append((now_seconds, totals))
        # The oldest sample that stays may be older than the window, so that the samples span all of it.
        while len(self._samples) > 2 and now_seconds - self._samples[1][0] >= RATE_WINDOW_SECONDS:
            self._samples.popleft()
        self._series = overview.get("series") or {}

    def compute_rate(self, name: str) -> float | None:
        """Returns the recent growth of a total per second; None if it is not known yet."""
        if len(self._samples) > 1:
            (first_seconds, first_totals), (last_seconds, last_totals) = self._samples[0], self._samples[-1]
            # Two overviews of one moment must not divide by zero.
            return (last_totals[name] - first_totals[name]) / max(1e-3, last_seconds - first_seconds)
        samples = self._series.get("samples") or []
        increments = compute_increments(samples[-2:], name)
        return increments[-1] / float(self._series["interval_seconds"]) if increments else None


def compute_increments(samples: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Returns by how much a total grew from each sample to the next; an empty list if the samples do not have it. After
    a restart of the gateway, the total itself is the growth."""
    values = [float(sample[name]) for sample in samples if sample.get(name) is not None]
    if len(values) < len(samples):
        return []
    return [total if total < previous_total else total - previous_total for previous_total, total in pairwise(values)]


def downsample_last_hour(values: Sequence[float | None], columns: int, per_hour: int) -> list[float | None]:
    """Fits the values of the last hour to `columns` columns, the newest at the right. A column has its largest value,
    or None if it has no values.

    Args:
        values: evenly spaced, oldest first; None: nothing was observed.
        columns: the number of columns.
        per_hour: the number of values in an hour.
    """
    recent = list(values[-per_hour:])
    hour = [None] * (per_hour - len(recent)) + recent
    column_values: list[float | None] = []
    for column in range(columns):
        start = column * per_hour // columns
        # At least one value for each column: with more columns than values, neighbours show the same value.
        known = [
            value for value in hour[start : max(start + 1, (column + 1) * per_hour // columns)] if value is not None
        ]
        column_values.append(max(known) if known else None)
    return column_values
