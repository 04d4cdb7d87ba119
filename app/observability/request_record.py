"""Collects what the list of recent requests shows of a model call: who asked, who answered, and when each step began
and ended. Nothing of it is content.

The rooms below the edge find the record of the current request in a context variable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final, Literal, ParamSpec, TypeVar

import msgspec

from app.observability.metrics import TurnFacts

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

StepName = Literal[
    "read",
    "queue",
    "join",
    "resolve",
    "recall",
    "lease",
    "plan",
    "quotations",
    "compaction",
    "summary",
    "attempt",
    "store",
    "cache_lost",
]
"""The names of steps; docs/telemetry.md says what each is."""
MAX_STEPS: Final = 64
"""How many steps of one request are kept. An answer with the search tool has the most: about four for each round."""


class RequestStep(msgspec.Struct, array_like=True):
    """A step of a request. Times are monotonic seconds; `ended_at` is None while the step runs.

    `array_like`, here and below, makes its JSON shorter.

    Attributes:
        detail: names and numbers, such as the provider and its status.
    """

    name: StepName
    started_at: float
    ended_at: float | None = None
    detail: dict[str, Any] = {}

    def end(self, at: float, *, error: str | None = None) -> None:
        """Ends the step.

        Args:
            error: why it failed; set in `detail`.
        """
        self.ended_at = at
        if error is not None:
            self.detail["error"] = error


class RequestRecord(msgspec.Struct):
    """The record of one model call, filled while it runs.

    Attributes:
        seconds: the monotonic clock of all steps.
        started_at: when the request began, in monotonic seconds.
        started_unix: the same, in Unix seconds.
        request_id: the id of the request; None until its headers are read.
        tenant: the caller's tenant; None if the caller was refused.
        key_id: the id of the caller's API key.
        turn: the numbers of the answer; None if there was none.
        answer: the place of the stored answer: its seq, and its link as hex digits.
        answer_id: the id that the client got with the stored answer, such as `chatcmpl-…`.
        steps: in the order in which they began.
    """

    seconds: Callable[[], float]
    started_at: float
    started_unix: float
    request_id: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    turn: TurnFacts | None = None
    answer: tuple[int, str] | None = None
    answer_id: str | None = None
    steps: list[RequestStep] = []

    def begin_step(self, name: StepName, detail: dict[str, Any] | None = None) -> RequestStep:
        """Begins a step now. A step that is not ended ends with the request."""
        step = RequestStep(name, self.seconds(), None, detail or {})
        if len(self.steps) < MAX_STEPS:
            self.steps.append(step)
        return step

    def end_step(self, step: RequestStep) -> None:
        """Ends a step now."""
        step.end(self.seconds())

    def add_step(self, name: StepName, started_at: float, detail: dict[str, Any] | None = None) -> None:
        """Adds a step that ends now."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append(RequestStep(name, started_at, self.seconds(), detail or {}))

    def forget(self) -> None:
        """Drops what was recorded. Timers that the request has set, such as that of its idle connection, keep the
        context in which this record is."""
        self.steps, self.turn = [], None


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def begin_request_record(seconds: Callable[[], float], started_at: float, started_unix: float) -> RequestRecord:
    """Starts the record of the request that this task answers."""
    record = RequestRecord(seconds, started_at, started_unix)
    # Never reset: the server runs each request in a context of its own.
    _current.set(record)
    return record


current_request_record: Final[Callable[[], RequestRecord | None]] = _current.get
"""Returns the record of the current request; None if the request is not listed, and outside of a request."""


def leave_request_record() -> None:
    """Ends the recording in this task. For work that a request has started and does not wait for."""
    _current.set(None)


def record_caller(request_id: str, tenant: str, key_id: str | None) -> None:
    """Records the id of the current request, and who sent it."""
    record = _current.get()
    if record is not None:
        record.request_id, record.tenant, record.key_id = request_id, tenant, key_id


def record_end_of_reading() -> None:
    """Records that the request is authenticated, read and parsed."""
    record = _current.get()
    if record is not None:
        record.add_step("read", record.started_at)


def timed_step(
    name: StepName,
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Coroutine[Any, Any, Result]]]:
    """Decorates a coroutine function: each run is a step in the timeline of the request."""

    def decorate(
        function: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Coroutine[Any, Any, Result]:
            work = function(*args, **kwargs)
            return work if (record := _current.get()) is None else time_step(record, name, work)

        return run

    return decorate


async def time_step(record: RequestRecord, name: StepName, work: Coroutine[Any, Any, Result]) -> Result:
    """Runs work as a step of a request's timeline."""
    step = record.begin_step(name)
    try:
        return await work
    finally:
        record.end_step(step)
