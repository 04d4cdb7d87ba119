"""Reads what was counted, by one process or by all workers together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from prometheus_client.core import Metric, Sample

from app.observability.metric_families import MetricFamily


class MetricsSnapshot:
    """All series with their numbers at one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for metric in metrics:
            for sample in metric.samples:
                self._samples[sample.name].append(sample)

    def iter_series(self, family: MetricFamily) -> Iterator[tuple[dict[str, str], float]]:
        """Yields the series of a counter or gauge: its labels by name, and its number."""
        for sample in self._samples[family.full_name]:
            yield sample.labels, sample.value

    def sum_series(self, family: MetricFamily, **labels: str) -> float:
        """Returns the sum over all series of a counter or gauge that have these labels."""
        return sum(
            number for series_labels, number in self.iter_series(family) if labels.items() <= series_labels.items()
        )

    def sum_histogram(self, family: MetricFamily, **labels: str) -> list[float]:
        """Returns the sum of all series of a histogram that have these labels: a count for each bucket. The last bucket
        has no upper end."""
        cumulative = dict.fromkeys((*family.bounds, math.inf), 0.0)
        for sample in self._samples[f"{family.full_name}_bucket"]:
            if labels.items() <= sample.labels.items():
                cumulative[float(sample.labels["le"])] += sample.value
        return [count - count_below for count_below, count in pairwise([0.0, *cumulative.values()])]

    def sum_by_label(self, family: MetricFamily, label: str) -> dict[str, float]:
        """Returns the totals of a counter by the values of one label."""
        totals: dict[str, float] = {}
        for series_labels, number in self.iter_series(family):
            totals[series_labels[label]] = totals.get(series_labels[label], 0.0) + number
        return totals


def estimate_quantile(share: float, family: MetricFamily, bucket_counts: Sequence[float]) -> float | None:
    """Estimates a quantile from a histogram, linearly within its bucket; returns None if the histogram is empty.

    In the bucket above the last bound it is the last bound, as in Prometheus' `histogram_quantile`.

    Args:
        share: the quantile, 0 to 1.
        family: the family, for its bounds.
        bucket_counts: as `sum_histogram` returns them.
    """
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
