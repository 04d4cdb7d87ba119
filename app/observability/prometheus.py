"""Renders metrics in Prometheus' formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.observability.metric_families import FAMILIES, MetricFamily
from app.observability.metric_readings import MetricsSnapshot, Series


class MetricsResponse(NamedTuple):
    """The response to `GET /metrics`."""

    body: bytes
    content_type: str


class PrometheusExposition:
    """Renders the snapshot that `read` returns, by means of a registry of its own.

    The library's global registry is not used: an application that embeds the gateway may have metrics in it.
    """

    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_SnapshotCollector(read))

    def render(self, accept: str) -> MetricsResponse:
        """Renders all metrics.

        Args:
            accept: the request's header `Accept`. It selects OpenMetrics; otherwise Prometheus' text format is used.
        """
        encode, content_type = choose_encoder(accept)
        return MetricsResponse(encode(self._registry), content_type)


class _SnapshotCollector(Collector):
    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        # The registry asks for names to find clashes between collectors; this one is alone in its registry.
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers = self._read()
        for family in FAMILIES:
            yield _build_metric(family, numbers)


def _build_metric(family: MetricFamily, numbers: MetricsSnapshot) -> Metric:
    name, labels = family.full_name, family.labels
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=labels)
        for series_labels, series in numbers.iter_series(family):
            histogram.add_metric([*series_labels.values()], _cumulative_buckets(family, series), series[0])
        return histogram
    metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(name, family.help, labels=labels)
    for series_labels, series in numbers.iter_series(family):
        metric.add_metric([*series_labels.values()], series[0])
    return metric


def _cumulative_buckets(family: MetricFamily, series: Series) -> list[tuple[str, float]]:
    """Returns the buckets as Prometheus expects them: each count includes all buckets below."""
    ends = [*map(str, family.bounds), "+Inf"]
    return list(zip(ends, accumulate(series[1:]), strict=True))
