"""Numbers as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.observability.metric_families import FAMILIES, Family
from app.observability.metric_readings import Numbers, Series


class Told(NamedTuple):
    """An answer to `/metrics`."""

    body: bytes
    content_type: str


class Exposition:
    """Tells what `read` gives, in the form that is asked for."""

    def __init__(self, read: Callable[[], Numbers]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collecting(read))

    def told(self, accept: str) -> Told:
        """
        Args:
            accept: the header: OpenMetrics where it names that, else Prometheus' text format.
        """
        encode, content_type = choose_encoder(accept)
        return Told(encode(self._registry), content_type)


class _Collecting(Collector):
    def __init__(self, read: Callable[[], Numbers]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers = self._read()
        for family in FAMILIES:
            yield _metric(family, numbers)


def _metric(family: Family, numbers: Numbers) -> Metric:
    name, labels = family.full_name, family.labels
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=labels)
        for told, series in numbers.of(family):
            histogram.add_metric([*told.values()], _buckets(family, series), series[0])
        return histogram
    metric = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(name, family.help, labels=labels)
    for told, series in numbers.of(family):
        metric.add_metric([*told.values()], series[0])
    return metric


def _buckets(family: Family, series: Series) -> list[tuple[str, float]]:
    """Prometheus wants each bucket with all that lies below it."""
    ends = [*map(str, family.bounds), "+Inf"]
    return list(zip(ends, accumulate(series[1:]), strict=True))
