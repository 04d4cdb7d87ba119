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
from app.observability.counter_cells import Cells, own_cells, shared_cells
from app.observability.metric_families import OTHER, Family
from app.observability.metric_readings import Numbers, Reading

log = logging.getLogger(__name__)

MOST_MODELS: Final = 100
MOST_KEPT: Final = 500
"""Of places that are found once: models, by how their answers may end."""


class Counted:
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


class Observed:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_place", "_values")

    def __init__(self, values: memoryview[float], place: int, bounds: tuple[float, ...]) -> None:
        self._values = values
        self._place = place
        self._bounds = bounds

    def add(self, number: float) -> None:
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
        cells = None if folder is None else _shared_with_others(folder)
        self._cells = cells or own_cells()
        self._reading = Reading(self._cells, None if cells is None else folder)
        self._counted: dict[tuple[Family, tuple[str, ...]], Counted] = {}
        self._observed: dict[tuple[Family, tuple[str, ...]], Observed] = {}
        self._models: dict[str, str] = {name: name for name in models}
        self._by_model: dict[tuple[str, str, str, str], _OfModel] = {}
        self._watched: list[tuple[Counted, Callable[[], float]]] = []
        self.now = clock
        self.in_flight = self.counted(f.IN_FLIGHT)
        self.streams = self.counted(f.STREAMS)
        self.compacting = self.counted(f.COMPACTING)
        self.store_queue = self.counted(f.STORE_QUEUE)
        self._pressure = self.observed(f.PRESSURE)
        self.counted(f.WORKERS).set(1)
        for family in f.FAMILIES:
            if family.kind == "counter" and not family.labels:
                self.counted(family)
        _begin(self._cells, unix_seconds())

    def counted(self, family: Family, *labels: str) -> Counted:
        """A series of a counter or gauge; from the first time on it is told."""
        key = (family, labels)
        found = self._counted.get(key)
        if found is None:
            found = self._counted[key] = Counted(self._cells.values, self._cells.place(family, labels))
        return found

    def observed(self, family: Family, *labels: str) -> Observed:
        """A series of a histogram."""
        key = (family, labels)
        found = self._observed.get(key)
        if found is None:
            place = self._cells.place(family, labels)
            found = self._observed[key] = Observed(self._cells.values, place, family.bounds)
        return found

    def watch(self, family: Family, value: Callable[[], float], *labels: str) -> None:
        """A number that is looked up whenever numbers are read."""
        self._watched.append((self.counted(family, *labels), value))

    def describe(self, *, version: str, database: str) -> None:
        """Say what is running."""
        self.counted(f.BUILD, version, database).set(1)

    def numbers(self) -> Numbers:
        """Everything that was counted until now, by all processes."""
        self.refresh()
        return self._reading.read()

    def refresh(self) -> None:
        """Look up what is watched, so that others who read see it as it is."""
        for gauge, value in self._watched:
            gauge.set(value())

    def close(self) -> None:
        """Nothing more is counted or read."""
        self._reading.close()
        self._cells.close()

    def model(self, name: str, *, is_served: bool = True) -> str:
        """A model's name as a label.

        Args:
            is_served: some provider has answered to it; who makes names up does not fill the list with them.
        """
        known = self._models.get(name)
        if known is not None:
            return known
        if not is_served or len(self._models) >= MOST_MODELS:
            return OTHER
        self._models[name] = name
        return name

    def error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        """Count an error that a client is told.

        Args:
            is_of_application: False: a probe, a scraper, the console or an operator is told.
        """
        self.counted(f.ERRORS, code or OTHER, str(status)).add()
        if not is_of_application:
            self.counted(f.OPERATOR_ERRORS, code or OTHER, str(status)).add()

    def answered(self, facts: TurnFacts) -> None:
        """A model has answered."""
        key = (facts.provider, facts.model, facts.status, facts.policy)
        of = self._by_model.get(key) or self._of_model(key)
        values = self._cells.values
        values[of.turns] += 1
        self._pressure.add(facts.pressure)
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
            self.counted(f.UNPRICED, "usage" if facts.reported_tokens is None else "price").add()
        if facts.saved_usd is not None:
            of.saved_cost.add(facts.saved_usd)
        if not facts.is_whole:
            self.counted(f.INTERRUPTED).add()
        if facts.recovered:
            self.counted(f.RECOVERIES).add()

    def summarized(self, facts: SummaryFacts) -> None:
        """A model was asked for a summary and answered, whatever became of that."""
        model = self.model(facts.model)
        self.counted(f.SUMMARY_TOKENS, "prompt", facts.provider, model).add(facts.prompt_tokens)
        self.counted(f.SUMMARY_TOKENS, "completion", facts.provider, model).add(facts.completion_tokens)
        if facts.cost_usd is not None:
            self.counted(f.COST, "summary", facts.provider, model).add(facts.cost_usd)
        else:
            self.counted(f.UNPRICED, "price" if facts.is_reported else "usage").add()

    def _of_model(self, key: tuple[str, str, str, str]) -> _OfModel:
        """Series of a model that are not looked up yet."""
        provider, model, status, policy = key
        found = _OfModel(self, provider, self.model(model), (status, policy))
        if len(self._by_model) < MOST_KEPT:
            self._by_model[key] = found
        return found


class _OfModel:
    """Where each answer of one model that ended alike is counted: places of cells, found once."""

    def __init__(self, metrics: Metrics, provider: str, model: str, ended: tuple[str, str]) -> None:
        self._metrics = metrics
        self._of = of = (provider, model)
        self.turns = metrics.counted(f.TURNS, *ended).place
        self.estimated = metrics.counted(f.PROMPT_TOKENS, "estimated", *of).place
        self.reported = metrics.counted(f.PROMPT_TOKENS, "reported", *of).place
        self.log = metrics.counted(f.PROMPT_TOKENS, "log", *of).place
        self.saved = metrics.counted(f.PROMPT_TOKENS, "saved", *of).place
        self.cached = metrics.counted(f.PROMPT_TOKENS, "cached", *of).place
        self.completion = metrics.counted(f.COMPLETION_TOKENS, *of).place

    @functools.cached_property
    def cost(self) -> Counted:
        """Told from the first priced answer on: what is not known is no zero."""
        return self._metrics.counted(f.COST, "answer", *self._of)

    @functools.cached_property
    def saved_cost(self) -> Counted:
        return self._metrics.counted(f.SAVED_COST, *self._of)


def _shared_with_others(folder: Path) -> Cells | None:
    try:
        return shared_cells(folder)
    except OSError as error:
        log.warning("this process counts for itself alone, and others do not tell its numbers: %s", error)
        return None


def _begin(cells: Cells, unix_seconds: float) -> None:
    """When it all began: a process that goes on counting for another one leaves that as it is."""
    place = cells.place(f.STARTED, ())
    if not cells.values[place]:
        cells.values[place] = unix_seconds


class _Silent(Metrics):
    """Counts nothing."""

    is_on = False

    def watch(self, family: Family, value: Callable[[], float], *labels: str) -> None:
        return None

    def answered(self, facts: TurnFacts) -> None:
        return None

    def summarized(self, facts: SummaryFacts) -> None:
        return None

    def error(self, code: str | None, status: int, *, is_of_application: bool = True) -> None:
        return None


SILENT: Final[Metrics] = _Silent()
"""For those whom nobody watches. What is counted one by one is counted into numbers that nobody reads."""
