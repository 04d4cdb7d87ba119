"""Reads what was counted, by one process or by all workers together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.observability.metric_families import MetricFamily
from app.observability.shared_metric_cells import CounterCells, PeerCells, SeriesKey, find_peer_cells

Series = Sequence[float]
"""The numbers of a series: one number; for a histogram its sum, then a count for each bucket. The last bucket has no
upper end."""


class MetricsSnapshot:
    """All series with their numbers at one moment."""

    def __init__(self, series: dict[SeriesKey, list[float]]) -> None:
        self._series = series

    def iter_series(self, family: MetricFamily) -> Iterator[tuple[dict[str, str], Series]]:
        """Yields the series of a family: its labels by name, and its numbers."""
        for key, numbers in self._series.items():
            if key.family is family:
                yield dict(zip(family.labels, key.labels, strict=True)), numbers

    def sum_series(self, family: MetricFamily, **labels: str) -> float:
        """Returns the sum over all series of a counter or gauge that have these labels."""
        return sum(
            numbers[0] for series_labels, numbers in self.iter_series(family) if labels.items() <= series_labels.items()
        )

    def sum_histogram(self, family: MetricFamily, **labels: str) -> list[float]:
        """Returns the sum of all series of a histogram that have these labels."""
        total = [0.0] * family.cells_per_series
        for series_labels, numbers in self.iter_series(family):
            if labels.items() <= series_labels.items():
                total = [left + right for left, right in zip(total, numbers, strict=True)]
        return total

    def sum_by_label(self, family: MetricFamily, label: str) -> dict[str, float]:
        """Returns the totals of a counter by the values of one label."""
        totals: dict[str, float] = {}
        for series_labels, numbers in self.iter_series(family):
            totals[series_labels[label]] = totals.get(series_labels[label], 0.0) + numbers[0]
        return totals


class MetricsReader:
    """Reads the numbers of this process, and of other workers if there are any.

    Args:
        own: the cells of this process.
        folder: the folder in which the workers count; None if this process serves alone.
    """

    def __init__(self, own: CounterCells, folder: Path | None) -> None:
        self._own = own
        self._folder = folder
        self._peers: dict[int, PeerCells] = {}

    def read_snapshot(self) -> MetricsSnapshot:
        """Reads the counters of all processes that ever counted, and the gauges of those that live."""
        series: dict[SeriesKey, list[float]] = {}
        if self._folder is None:
            _merge_cells(series, self._own, is_alive=True)
            return MetricsSnapshot(series)
        # The peers include this process.
        for peer in find_peer_cells(self._folder, self._peers).values():
            peer.read_new_series()
            _merge_cells(series, peer.cells, is_alive=peer.is_alive)
        return MetricsSnapshot(series)

    def close(self) -> None:
        """Closes the files of the other processes."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


def estimate_quantile(share: float, family: MetricFamily, series: Series) -> float | None:
    """Estimates a quantile from a histogram, linearly within its bucket; returns None if the histogram is empty.

    In the bucket above the last bound it is the last bound, as in Prometheus' `histogram_quantile`.

    Args:
        share: the quantile, 0 to 1.
        family: the family, for its bounds.
        series: the histogram's numbers.
    """
    bucket_counts = series[1:]
    total_count = sum(bucket_counts)
    if total_count <= 0:
        return None
    target_count, count_below = share * total_count, 0.0
    for bucket, count in enumerate(bucket_counts):
        if count_below + count >= target_count and count > 0:
            if bucket == len(family.bounds):
                break
            lower_bound = family.bounds[bucket - 1] if bucket else 0.0
            return lower_bound + (family.bounds[bucket] - lower_bound) * (target_count - count_below) / count
        count_below += count
    return family.bounds[-1]


def _merge_cells(series: dict[SeriesKey, list[float]], cells: CounterCells, *, is_alive: bool) -> None:
    """Adds the numbers of one process to `series`."""
    for key, cell in list(cells.cells_by_series.items()):
        family = key.family
        # A dead process has no open connections and runs no tasks. Only the start time is true of it.
        if family.kind == "gauge" and not is_alive and family.merging != "min":
            continue
        numbers: list[float] = [*cells.values[cell : cell + family.cells_per_series]]
        merged = series.get(key)
        if merged is None:
            series[key] = numbers
        elif family.kind == "gauge" and family.merging != "sum":
            merged[0] = (max if family.merging == "max" else min)(merged[0], numbers[0])
        else:
            series[key] = [left + right for left, right in zip(merged, numbers, strict=True)]
