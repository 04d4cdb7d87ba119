"""Counts events in metrics: one `Metrics` object for a process, which each room gets as an argument.

The series are `prometheus_client`'s. Each `Metrics` has a registry of its own, because tests, and applications that
embed the gateway, have several in one process.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.observability import metric_families as f
from app.observability.metric_families import OTHER_LABEL, MetricFamily
from app.observability.metric_readings import MetricsSnapshot
from app.observability.worker_metric_files import count_alone, join_metric_folder

log = logging.getLogger(__name__)

MAX_MODEL_LABELS: Final = 100
"""How many models have a label of their own. It bounds the series, because clients choose the names of models."""


class TurnFacts(msgspec.Struct, array_like=True):
    """The numbers of one answer of a model. None means not reported, or not known.

    Attributes:
        prompt_tokens: our count of the view that was sent.
        log_tokens: our count of the whole log, which would have been sent without the gateway.
        pressure: the prompt as a share of its limit.
        reported_tokens: the provider's count of the prompt.
        cached_tokens: the part of `reported_tokens` that the provider read from its cache.
        completion_tokens: the provider's count of the answer.
        cost_usd: the cost of the answer by list price.
        saved_usd: the list price of the tokens that were not sent.
        is_whole: the answer came to its end.
        has_recovered: the provider had refused the first prompt as too long.
    """

    provider: str
    model: str
    policy: str
    status: str
    prompt_tokens: int
    log_tokens: int
    pressure: float
    reported_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    saved_usd: float | None = None
    is_whole: bool = True
    has_recovered: bool = False


class SummaryFacts(msgspec.Struct, frozen=True):
    """The numbers of one summarizer call. `is_reported` says whether the provider reported usage."""

    provider: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_reported: bool = True
    cost_usd: float | None = None


class Metrics(Collector):
    """The metrics of one process.

    Args:
        folder: the folder in which all workers count; None if this process serves alone. If the folder cannot be used,
            the process counts alone, too. A process has one `Metrics` with a folder: the library's files are global.
        models: the configured names of models: each has a label.
        is_known_model: whether a name is that of a well-known model. Such names get a label up to `MAX_MODEL_LABELS`.
            All other names were made up by clients or providers, and share the label `other`.
        clock: returns monotonic seconds.
        unix_seconds: returns the time as Unix seconds.

    Attributes:
        is_on: whether anything is counted. Callers ask before they compute facts that only metrics need.
        counter_series, gauge_series, histogram_series: return a series of a family of their kind, by its labels. From
            the first call on the series is part of `/metrics`.
        now: the monotonic clock, for durations.
        in_flight: chat completions that are being answered.
        streams: open streams.
        running_compactions: running compactions.
        store_queue: operations of the store that wait or run.
    """

    is_on: bool = True

    def __init__(
        self,
        folder: Path | None = None,
        *,
        models: tuple[str, ...] = (),
        is_known_model: Callable[[str], bool] = lambda name: True,
        clock: Callable[[], float] = time.perf_counter,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._lock = None if folder is None else _join_folder(folder)
        registry = CollectorRegistry(auto_describe=False)
        create = functools.partial(_create_family, registry=registry) if self.is_on else _NoSeries
        families: dict[MetricFamily, Any] = {family: create(family) for family in f.FAMILIES}

        @functools.cache  # the library keeps every series, too, but takes some ten calls to find one
        def find_series(family: MetricFamily, *labels: str) -> Any:
            return families[family].labels(*labels) if labels else families[family]

        self.counter_series: Callable[[MetricFamily, *tuple[str, ...]], Counter] = find_series
        self.gauge_series: Callable[[MetricFamily, *tuple[str, ...]], Gauge] = find_series
        self.histogram_series: Callable[[MetricFamily, *tuple[str, ...]], Histogram] = find_series
        self._source: Collector = registry
        if self._lock is not None:
            self._source = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]
        self._is_known_model = is_known_model
        self._model_labels: dict[str, str] = {name: name for name in models}
        self._watched_gauges: list[tuple[Gauge, Callable[[], float]]] = []
        self.now = clock
        self.in_flight = self.gauge_series(f.REQUESTS_IN_FLIGHT)
        self.streams = self.gauge_series(f.STREAMS_OPEN)
        self.running_compactions = self.gauge_series(f.RUNNING_COMPACTIONS)
        self.store_queue = self.gauge_series(f.STORE_QUEUE)
        self._pressure_series = self.histogram_series(f.CONTEXT_PRESSURE)
        self.gauge_series(f.WORKERS).set(1)
        # A worker that takes the place of one that ended finds the time of the first one in its file.
        start_time = self.gauge_series(f.START_TIME)
        if self.is_on and not next(iter(start_time.collect())).samples[0].value:
            start_time.set(unix_seconds())

    def watch_gauge(self, family: MetricFamily, read_value: Callable[[], float], *labels: str) -> None:
        """Registers a function that returns a number; it is called whenever metrics are read."""
        self._watched_gauges.append((self.gauge_series(family, *labels), read_value))

    def collect(self) -> Iterator[Metric]:
        """Reads the counters of all processes that ever counted, and the gauges of those that live."""
        # Other workers' gauges are as old as their last reading, at most one interval of the overview.
        for gauge, read_value in self._watched_gauges:
            gauge.set(read_value())
        for metric in self._source.collect():
            # The library adds the time of each series' creation, which is no metric of ours.
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric

    def read_snapshot(self) -> MetricsSnapshot:
        """Reads everything that was counted until now, by all workers."""
        return MetricsSnapshot(self.collect())

    def render(self, accept: str) -> tuple[bytes, str]:
        """Renders all metrics for Prometheus. Returns the body and its content type.

        Args:
            accept: the request's header `Accept`. It selects OpenMetrics; otherwise Prometheus' text format is used.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def model_label(self, name: str, *, is_served: bool = True) -> str:
        """Returns the label of a model: its name if it is configured or well known, else `other`.

        Args:
            name: the provider's name of the model.
            is_served: whether a provider has answered for this model. A name that no provider has confirmed gets no
                label, so that clients cannot use up the labels with made-up names.
        """
        label = self._model_labels.get(name)
        if label is not None:
            return label
        if not is_served or len(self._model_labels) >= MAX_MODEL_LABELS or not self._is_known_model(name):
            return OTHER_LABEL
        self._model_labels[name] = name
        return name

    def count_error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        """Counts an error that is sent to a client.

        Args:
            code: the name of the error; None if it has none.
            status: the HTTP status.
            is_of_application: False if the client is a probe, a scraper, the console or an operator.
        """
        self.counter_series(f.ERRORS, code or OTHER_LABEL, str(status)).inc()
        if not is_of_application:
            self.counter_series(f.OPERATOR_ERRORS, code or OTHER_LABEL, str(status)).inc()

    def count_turn(self, facts: TurnFacts) -> None:
        """Counts the answer of a model."""
        model_labels = (facts.provider, self.model_label(facts.model))
        self.counter_series(f.TURNS, facts.status, facts.policy).inc()
        self._pressure_series.observe(facts.pressure)
        tokens = {
            "estimated": facts.prompt_tokens,
            "log": facts.log_tokens,
            # A view can have more tokens than the log, by quotations or summaries. A counter must not go down.
            "saved": max(0, facts.log_tokens - facts.prompt_tokens),
            "reported": facts.reported_tokens or 0,
            "cached": facts.cached_tokens or 0,
        }
        for kind, count in tokens.items():
            self.counter_series(f.PROMPT_TOKENS, kind, *model_labels).inc(count)
        self.counter_series(f.COMPLETION_TOKENS, *model_labels).inc(facts.completion_tokens or 0)
        # An unknown cost is not counted as 0: the call counts as unpriced instead.
        if facts.cost_usd is not None:
            self.counter_series(f.COST, "answer", *model_labels).inc(facts.cost_usd)
        else:
            self.counter_series(f.UNPRICED_CALLS, "usage" if facts.reported_tokens is None else "price").inc()
        if facts.saved_usd is not None:
            self.counter_series(f.SAVED_COST, *model_labels).inc(facts.saved_usd)
        if not facts.is_whole:
            self.counter_series(f.INTERRUPTED_TURNS).inc()
        if facts.has_recovered:
            self.counter_series(f.OVERFLOW_RECOVERIES).inc()

    def count_summary_call(self, facts: SummaryFacts) -> None:
        """Counts a summarizer call that was answered, whether or not the answer was usable."""
        model = self.model_label(facts.model)
        self.counter_series(f.SUMMARY_TOKENS, "prompt", facts.provider, model).inc(facts.prompt_tokens)
        self.counter_series(f.SUMMARY_TOKENS, "completion", facts.provider, model).inc(facts.completion_tokens)
        if facts.cost_usd is not None:
            self.counter_series(f.COST, "summary", facts.provider, model).inc(facts.cost_usd)
        else:
            self.counter_series(f.UNPRICED_CALLS, "price" if facts.is_reported else "usage").inc()


def _join_folder(folder: Path) -> BinaryIO | None:
    # A worker without metrics is better than no worker: the process counts alone, and `/metrics` lacks its numbers.
    try:
        return join_metric_folder(folder)
    except OSError as error:
        log.warning("cannot share metrics, so only this process reports its numbers: %s", error)
        count_alone()
        return None


def _create_family(family: MetricFamily, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    arguments = (family.full_name, family.help, family.labels)
    if family.kind == "counter":
        return Counter(*arguments, registry=registry)
    if family.kind == "gauge":
        return Gauge(*arguments, registry=registry, multiprocess_mode=family.merging)
    return Histogram(*arguments, registry=registry, buckets=family.bounds)


class _NoSeries:
    """A metric that counts nothing, and each of its series."""

    def __init__(self, family: MetricFamily) -> None: ...

    def labels(self, *labels: str) -> _NoSeries:
        return self

    def inc(self, amount: float = 1) -> None: ...
    def dec(self, amount: float = 1) -> None: ...
    def set(self, value: float) -> None: ...
    def observe(self, amount: float) -> None: ...


class _NoMetrics(Metrics):
    """Metrics that are switched off."""

    is_on = False

    def watch_gauge(self, family: MetricFamily, read_value: Callable[[], float], *labels: str) -> None:
        return None


NO_METRICS: Final[Metrics] = _NoMetrics()
"""The metrics of a process without metrics. Single series can still be added to; nothing is counted."""
