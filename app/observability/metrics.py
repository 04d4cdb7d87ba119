"""Counts what happens. One object for a process; whoever sees something happen tells it, in a few hundred nanoseconds.

Works in the event loop's thread only: numbers are added to, and not behind a lock.
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
from app.observability.counter_cells import CounterCells, create_private_cells, open_shared_cells
from app.observability.metric_families import OTHER, MetricFamily
from app.observability.metric_readings import MetricsReader, MetricsSnapshot

log = logging.getLogger(__name__)

MAX_MODEL_LABELS: Final = 100
MAX_CACHED_MODEL_SERIES: Final = 500
"""Of places that are found once: models, by how their answers may end."""


class CounterSeries:
    """One series of a counter or gauge.

    Attributes:
        place: of its cell, for who adds to several at once.
    """

    __slots__ = ("_values", "place")

    def __init__(self, values: memoryview[float], place: int) -> None:
        self._values = values
        self.place = place

    def add(self, number: float = 1.0) -> None:
        self._values[self.place] += number

    def set(self, number: float) -> None:
        self._values[self.place] = number


class HistogramSeries:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_place", "_values")

    def __init__(self, values: memoryview[float], place: int, bounds: tuple[float, ...]) -> None:
        self._values = values
        self._place = place
        self._bounds = bounds

    def observe(self, number: float) -> None:
        place = self._place
        self._values[place] += number
        self._values[place + 1 + bisect_left(self._bounds, number)] += 1


class TurnFacts(msgspec.Struct):
    """An answer of a model, in numbers. None: not reported, or not known."""

    provider: str
    model: str
    policy: str
    status: str
    prompt_tokens: int
    """Our count of what was sent."""
    log_tokens: int
    """What would have been sent without us."""
    pressure: float
    reported_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    saved_usd: float | None = None
    is_whole: bool = True
    recovered: bool = False


class SummaryFacts(msgspec.Struct, frozen=True):
    """A call for a summary, in numbers."""

    provider: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_reported: bool = True
    cost_usd: float | None = None


class Metrics:
    """What one process has counted.

    Args:
        folder: where the processes that serve together count; None: this one is alone, and so it is where the folder
            cannot be used.
        models: names that are told in any case; others as long as there are not too many.
        clock: monotonic seconds.
        unix_seconds: the time of day.
    """

    is_on: bool = True

    def __init__(
        self,
        folder: Path | None = None,
        *,
        models: tuple[str, ...] = (),
        clock: Callable[[], float] = time.perf_counter,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        cells = None if folder is None else _open_shared_cells(folder)
        self._cells = cells or create_private_cells()
        self._reading = MetricsReader(self._cells, None if cells is None else folder)
        self._counter_cache: dict[tuple[MetricFamily, tuple[str, ...]], CounterSeries] = {}
        self._histogram_cache: dict[tuple[MetricFamily, tuple[str, ...]], HistogramSeries] = {}
        self._models: dict[str, str] = {name: name for name in models}
        self._by_model: dict[tuple[str, str, str, str], _ModelSeries] = {}
        self._watched: list[tuple[CounterSeries, Callable[[], float]]] = []
        self.now = clock
        self.in_flight = self.counter_series(f.IN_FLIGHT)
        self.streams = self.counter_series(f.STREAMS)
        self.compacting = self.counter_series(f.COMPACTING)
        self.store_queue = self.counter_series(f.STORE_QUEUE)
        self._pressure = self.histogram_series(f.PRESSURE)
        self.counter_series(f.WORKERS).set(1)
        for family in f.FAMILIES:
            if family.kind == "counter" and not family.labels:
                self.counter_series(family)
        _set_start_time(self._cells, unix_seconds())

    def counter_series(self, family: MetricFamily, *labels: str) -> CounterSeries:
        """A series of a counter or gauge; from the first time on it is told."""
        key = (family, labels)
        found = self._counter_cache.get(key)
        if found is None:
            found = self._counter_cache[key] = CounterSeries(self._cells.values, self._cells.find_cell(family, labels))
        return found

    def histogram_series(self, family: MetricFamily, *labels: str) -> HistogramSeries:
        """A series of a histogram."""
        key = (family, labels)
        found = self._histogram_cache.get(key)
        if found is None:
            place = self._cells.find_cell(family, labels)
            found = self._histogram_cache[key] = HistogramSeries(self._cells.values, place, family.bounds)
        return found

    def watch_gauge(self, family: MetricFamily, value: Callable[[], float], *labels: str) -> None:
        """A number that is looked up whenever numbers are read."""
        self._watched.append((self.counter_series(family, *labels), value))

    def set_build_info(self, *, version: str, database: str) -> None:
        """Say what is running."""
        self.counter_series(f.BUILD, version, database).set(1)

    def read_snapshot(self) -> MetricsSnapshot:
        """Everything that was counted until now, by all processes."""
        self.refresh_gauges()
        return self._reading.read_snapshot()

    def refresh_gauges(self) -> None:
        """Look up what is watched, so that others who read see it as it is."""
        for gauge, value in self._watched:
            gauge.set(value())

    def close(self) -> None:
        """Nothing more is counted or read."""
        self._reading.close()
        self._cells.close()

    def model_label(self, name: str, *, is_served: bool = True) -> str:
        """A model's name as a label.

        Args:
            is_served: some provider has answered to it; who makes names up does not fill the list with them.
        """
        known = self._models.get(name)
        if known is not None:
            return known
        if not is_served or len(self._models) >= MAX_MODEL_LABELS:
            return OTHER
        self._models[name] = name
        return name

    def count_error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        """Count an error that a client is told.

        Args:
            is_of_application: False: a probe, a scraper, the console or an operator is told.
        """
        self.counter_series(f.ERRORS, code or OTHER, str(status)).add()
        if not is_of_application:
            self.counter_series(f.OPERATOR_ERRORS, code or OTHER, str(status)).add()

    def count_turn(self, facts: TurnFacts) -> None:
        """A model has answered."""
        key = (facts.provider, facts.model, facts.status, facts.policy)
        of = self._by_model.get(key) or self._find_model_series(key)
        values = self._cells.values
        values[of.turns] += 1
        self._pressure.observe(facts.pressure)
        values[of.estimated] += facts.prompt_tokens
        values[of.log] += facts.log_tokens
        if facts.log_tokens > facts.prompt_tokens:
            values[of.saved] += facts.log_tokens - facts.prompt_tokens
        if facts.reported_tokens is not None:
            values[of.reported] += facts.reported_tokens
            if facts.cached_tokens:
                values[of.cached] += facts.cached_tokens
            values[of.completion] += facts.completion_tokens or 0
        if facts.cost_usd is not None:
            of.cost.add(facts.cost_usd)
        else:
            self.counter_series(f.UNPRICED, "usage" if facts.reported_tokens is None else "price").add()
        if facts.saved_usd is not None:
            of.saved_cost.add(facts.saved_usd)
        if not facts.is_whole:
            self.counter_series(f.INTERRUPTED).add()
        if facts.recovered:
            self.counter_series(f.RECOVERIES).add()

    def count_summary_call(self, facts: SummaryFacts) -> None:
        """A model was asked for a summary and answered, whatever became of that."""
        model = self.model_label(facts.model)
        self.counter_series(f.SUMMARY_TOKENS, "prompt", facts.provider, model).add(facts.prompt_tokens)
        self.counter_series(f.SUMMARY_TOKENS, "completion", facts.provider, model).add(facts.completion_tokens)
        if facts.cost_usd is not None:
            self.counter_series(f.COST, "summary", facts.provider, model).add(facts.cost_usd)
        else:
            self.counter_series(f.UNPRICED, "price" if facts.is_reported else "usage").add()

    def _find_model_series(self, key: tuple[str, str, str, str]) -> _ModelSeries:
        """Series of a model that are not looked up yet."""
        provider, model, status, policy = key
        found = _ModelSeries(self, provider, self.model_label(model), (status, policy))
        if len(self._by_model) < MAX_CACHED_MODEL_SERIES:
            self._by_model[key] = found
        return found


class _ModelSeries:
    """Where each answer of one model that ended alike is counted: places of cells, found once."""

    def __init__(self, metrics: Metrics, provider: str, model: str, ended: tuple[str, str]) -> None:
        self._metrics = metrics
        self._of = of = (provider, model)
        self.turns = metrics.counter_series(f.TURNS, *ended).place
        self.estimated = metrics.counter_series(f.PROMPT_TOKENS, "estimated", *of).place
        self.reported = metrics.counter_series(f.PROMPT_TOKENS, "reported", *of).place
        self.log = metrics.counter_series(f.PROMPT_TOKENS, "log", *of).place
        self.saved = metrics.counter_series(f.PROMPT_TOKENS, "saved", *of).place
        self.cached = metrics.counter_series(f.PROMPT_TOKENS, "cached", *of).place
        self.completion = metrics.counter_series(f.COMPLETION_TOKENS, *of).place

    @functools.cached_property
    def cost(self) -> CounterSeries:
        """Told from the first priced answer on: what is not known is no zero."""
        return self._metrics.counter_series(f.COST, "answer", *self._of)

    @functools.cached_property
    def saved_cost(self) -> CounterSeries:
        return self._metrics.counter_series(f.SAVED_COST, *self._of)


def _open_shared_cells(folder: Path) -> CounterCells | None:
    try:
        return open_shared_cells(folder)
    except OSError as error:
        log.warning("this process counts for itself alone, and others do not tell its numbers: %s", error)
        return None


def _set_start_time(cells: CounterCells, unix_seconds: float) -> None:
    """When it all began: a process that goes on counting for another one leaves that as it is."""
    place = cells.find_cell(f.STARTED, ())
    if not cells.values[place]:
        cells.values[place] = unix_seconds


class _NoMetrics(Metrics):
    """Counts nothing."""

    is_on = False

    def watch_gauge(self, family: MetricFamily, value: Callable[[], float], *labels: str) -> None:
        return None

    def count_turn(self, facts: TurnFacts) -> None:
        return None

    def count_summary_call(self, facts: SummaryFacts) -> None:
        return None

    def count_error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        return None


NO_METRICS: Final[Metrics] = _NoMetrics()
"""For those whom nobody watches. What is counted one by one is counted into numbers that nobody reads."""
