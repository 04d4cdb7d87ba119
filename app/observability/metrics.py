"""Counts events in metrics: one `Metrics` object for a process, which each room gets as an argument.

A count takes a few hundred nanoseconds. It takes no lock, so everything here must run in the event loop's thread.
"""

from __future__ import annotations

import functools
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from app.observability import metric_families as f
from app.observability.metric_families import OTHER_LABEL, MetricFamily
from app.observability.metric_readings import MetricsReader, MetricsSnapshot
from app.observability.shared_metric_cells import CounterCells, create_private_cells, open_shared_cells

log = logging.getLogger(__name__)

MAX_MODEL_LABELS: Final = 100
"""How many models have a label of their own. It bounds the series, because clients choose the names of models."""
MAX_CACHED_MODEL_SERIES: Final = 500
"""How many combinations of provider, model, status and policy have their cells cached."""


class CounterSeries:
    """One series of a counter or gauge.

    Attributes:
        cell: the index of its cell, for callers that add to several cells at once.
    """

    __slots__ = ("_values", "cell")

    def __init__(self, values: memoryview[float], cell: int) -> None:
        self._values = values
        self.cell = cell

    def add(self, number: float = 1.0) -> None:
        self._values[self.cell] += number

    def set(self, number: float) -> None:
        self._values[self.cell] = number


class HistogramSeries:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_cell", "_values")

    def __init__(self, values: memoryview[float], cell: int, bounds: tuple[float, ...]) -> None:
        self._values = values
        self._cell = cell
        self._bounds = bounds

    def observe(self, number: float) -> None:
        # The first cell is the sum. A value at a bound belongs to the bucket that ends there, as in Prometheus.
        cell = self._cell
        self._values[cell] += number
        self._values[cell + 1 + bisect_left(self._bounds, number)] += 1


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


class Metrics:
    """The metrics of one process.

    Args:
        folder: the folder in which all workers count; None if this process serves alone. If the folder cannot be used,
            the process counts alone, too.
        models: the configured names of models: each has a label.
        is_known_model: whether a name is that of a well-known model. Such names get a label up to `MAX_MODEL_LABELS`.
            All other names were made up by clients or providers, and share the label `other`.
        clock: returns monotonic seconds.
        unix_seconds: returns the time as Unix seconds.

    Attributes:
        is_on: whether anything is counted. Callers ask before they compute facts that only metrics need.
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
        cells = None if folder is None else _open_shared_cells(folder)
        self._cells = cells or create_private_cells()
        self._reader = MetricsReader(self._cells, None if cells is None else folder)
        self._counter_cache: dict[tuple[MetricFamily, tuple[str, ...]], CounterSeries] = {}
        self._histogram_cache: dict[tuple[MetricFamily, tuple[str, ...]], HistogramSeries] = {}
        self._is_known_model = is_known_model
        self._model_labels: dict[str, str] = {name: name for name in models}
        self._model_series: dict[tuple[str, str, str, str], _ModelSeries] = {}
        self._watched_gauges: list[tuple[CounterSeries, Callable[[], float]]] = []
        self.now = clock
        self.in_flight = self.counter_series(f.REQUESTS_IN_FLIGHT)
        self.streams = self.counter_series(f.STREAMS_OPEN)
        self.running_compactions = self.counter_series(f.RUNNING_COMPACTIONS)
        self.store_queue = self.counter_series(f.STORE_QUEUE)
        self._pressure_series = self.histogram_series(f.CONTEXT_PRESSURE)
        self.counter_series(f.WORKERS).set(1)
        # Counters begin at 0: if one first appears at 1, a rate over it misses the first event. Counters with labels
        # begin when the values of their labels are known.
        for family in f.FAMILIES:
            if family.kind == "counter" and not family.labels:
                self.counter_series(family)
        _set_start_time(self._cells, unix_seconds())

    def counter_series(self, family: MetricFamily, *labels: str) -> CounterSeries:
        """Returns a series of a counter or gauge. From the first call on the series is part of `/metrics`."""
        key = (family, labels)
        series = self._counter_cache.get(key)
        if series is None:
            series = self._counter_cache[key] = CounterSeries(
                self._cells.values, self._cells.find_or_allocate_cell(family, labels)
            )
        return series

    def histogram_series(self, family: MetricFamily, *labels: str) -> HistogramSeries:
        """Returns a series of a histogram. From the first call on the series is part of `/metrics`."""
        key = (family, labels)
        series = self._histogram_cache.get(key)
        if series is None:
            cell = self._cells.find_or_allocate_cell(family, labels)
            series = self._histogram_cache[key] = HistogramSeries(self._cells.values, cell, family.bounds)
        return series

    def watch_gauge(self, family: MetricFamily, read_value: Callable[[], float], *labels: str) -> None:
        """Registers a function that returns a number; it is called whenever metrics are read."""
        self._watched_gauges.append((self.counter_series(family, *labels), read_value))

    def set_build_info(self, *, version: str, database: str) -> None:
        """Sets the gauge `build_info`, whose labels say what is running."""
        self.counter_series(f.BUILD_INFO, version, database).set(1)

    def read_snapshot(self) -> MetricsSnapshot:
        """Reads everything that was counted until now, by all workers."""
        # Before the reading, which sees the gauges in the cells only. Other workers' gauges are as old as their last
        # reading, at most one interval of the overview.
        self.refresh_gauges()
        return self._reader.read_snapshot()

    def refresh_gauges(self) -> None:
        """Writes the current values of watched gauges into the cells, where other workers read them, too."""
        for gauge, read_value in self._watched_gauges:
            gauge.set(read_value())

    def close(self) -> None:
        """Closes the files of this process's cells and those of the other workers."""
        self._reader.close()
        self._cells.close()

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
        self.counter_series(f.ERRORS, code or OTHER_LABEL, str(status)).add()
        if not is_of_application:
            self.counter_series(f.OPERATOR_ERRORS, code or OTHER_LABEL, str(status)).add()

    def count_turn(self, facts: TurnFacts) -> None:
        """Counts the answer of a model."""
        # Adds to the cells directly: a call for each number would take longer than the counting.
        key = (facts.provider, facts.model, facts.status, facts.policy)
        series = self._model_series.get(key) or self._find_model_series(key)
        values = self._cells.values
        values[series.turns] += 1
        self._pressure_series.observe(facts.pressure)
        values[series.estimated] += facts.prompt_tokens
        values[series.log] += facts.log_tokens
        # A view can have more tokens than the log, by quotations or summaries. A counter must not go down.
        if facts.log_tokens > facts.prompt_tokens:
            values[series.saved] += facts.log_tokens - facts.prompt_tokens
        if facts.reported_tokens is not None:
            values[series.reported] += facts.reported_tokens
            if facts.cached_tokens:
                values[series.cached] += facts.cached_tokens
            values[series.completion] += facts.completion_tokens or 0
        # An unknown cost is not counted as 0: the call counts as unpriced instead.
        if facts.cost_usd is not None:
            values[series.cost] += facts.cost_usd
        else:
            self.counter_series(f.UNPRICED_CALLS, "usage" if facts.reported_tokens is None else "price").add()
        if facts.saved_usd is not None:
            values[series.saved_cost] += facts.saved_usd
        if not facts.is_whole:
            self.counter_series(f.INTERRUPTED_TURNS).add()
        if facts.has_recovered:
            self.counter_series(f.OVERFLOW_RECOVERIES).add()

    def count_summary_call(self, facts: SummaryFacts) -> None:
        """Counts a summarizer call that was answered, whether or not the answer was usable."""
        model = self.model_label(facts.model)
        self.counter_series(f.SUMMARY_TOKENS, "prompt", facts.provider, model).add(facts.prompt_tokens)
        self.counter_series(f.SUMMARY_TOKENS, "completion", facts.provider, model).add(facts.completion_tokens)
        if facts.cost_usd is not None:
            self.counter_series(f.COST, "summary", facts.provider, model).add(facts.cost_usd)
        else:
            self.counter_series(f.UNPRICED_CALLS, "price" if facts.is_reported else "usage").add()

    def _find_model_series(self, key: tuple[str, str, str, str]) -> _ModelSeries:
        """Returns the series of a model, and caches them up to `MAX_CACHED_MODEL_SERIES`."""
        provider, model, status, policy = key
        series = _ModelSeries(self, provider, self.model_label(model), (status, policy))
        if len(self._model_series) < MAX_CACHED_MODEL_SERIES:
            self._model_series[key] = series
        return series


class _ModelSeries:
    """The cells for answers of one model with the same status and policy, so that they are looked up once."""

    def __init__(self, metrics: Metrics, provider: str, model: str, turn_labels: tuple[str, str]) -> None:
        self._metrics = metrics
        self._labels = model_labels = (provider, model)
        self.turns = metrics.counter_series(f.TURNS, *turn_labels).cell
        self.estimated = metrics.counter_series(f.PROMPT_TOKENS, "estimated", *model_labels).cell
        self.reported = metrics.counter_series(f.PROMPT_TOKENS, "reported", *model_labels).cell
        self.log = metrics.counter_series(f.PROMPT_TOKENS, "log", *model_labels).cell
        self.saved = metrics.counter_series(f.PROMPT_TOKENS, "saved", *model_labels).cell
        self.cached = metrics.counter_series(f.PROMPT_TOKENS, "cached", *model_labels).cell
        self.completion = metrics.counter_series(f.COMPLETION_TOKENS, *model_labels).cell

    @functools.cached_property
    def cost(self) -> int:
        """The cell of the cost. It is created by the first priced answer: an unknown cost must not appear as 0."""
        return self._metrics.counter_series(f.COST, "answer", *self._labels).cell

    @functools.cached_property
    def saved_cost(self) -> int:
        return self._metrics.counter_series(f.SAVED_COST, *self._labels).cell


def _open_shared_cells(folder: Path) -> CounterCells | None:
    # A worker without metrics is better than no worker: the process counts alone, and `/metrics` lacks its numbers.
    try:
        return open_shared_cells(folder)
    except OSError as error:
        log.warning("cannot share metrics, so only this process reports its numbers: %s", error)
        return None


def _set_start_time(cells: CounterCells, unix_seconds: float) -> None:
    """Sets the start time, unless a process before this one has set it in the same files."""
    cell = cells.find_or_allocate_cell(f.START_TIME, ())
    if not cells.values[cell]:
        cells.values[cell] = unix_seconds


class _NoMetrics(Metrics):
    """Metrics that are switched off."""

    is_on = False

    def watch_gauge(self, family: MetricFamily, read_value: Callable[[], float], *labels: str) -> None:
        return None

    def count_turn(self, facts: TurnFacts) -> None:
        return None

    def count_summary_call(self, facts: SummaryFacts) -> None:
        return None

    def count_error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        return None


NO_METRICS: Final[Metrics] = _NoMetrics()
"""The metrics of a process without metrics. Single series can still be added to; nobody reads them."""
