"""Options for the speed and the faults of the simulated model. Pure.

Faults can also be requested in a model's name, which passes through any client and gateway:
``sim-8k!status=503,first=2`` fails the first two requests for exactly that name, ``sim!hang,on=summary`` never answers
a request for a summary. Keys are those of `SimulatedFaults`; a key without a value is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from app.errors import InvalidRequest

STATUS_BOUNDS: Final = (200, 999)
MAX_FAULT_NUMBER: Final = 1_000_000
"""The largest number in a fault."""
FaultScope = Literal["all", "summary", "answer"]


@dataclass(frozen=True, slots=True)
class SimulatedFaults:
    """What goes wrong, and when. Without any field set, nothing does."""

    status: int | None = None
    """Answer with this error status."""
    retry_after: float | None = None
    """Seconds for the `Retry-After` header of that error."""
    break_after: int | None = None
    """Cut a stream after this many chunks; a whole body in the middle."""
    garbage: bool = False
    """Answer 200 with data that is not JSON."""
    hang: bool = False
    """Accept the request and never answer."""
    empty: bool = False
    """Answer with blank text."""
    first: int = 0
    """Only the first n requests fail."""
    every: int = 0
    """Only every nth request fails."""
    on: FaultScope = "all"
    """Which requests are counted and fail."""

    def is_request_affected(self, nth: int) -> bool:
        """Says whether the nth request in scope, counted from 1, fails."""
        if self.first:
            return nth <= self.first
        return nth % self.every == 0 if self.every else self.has_fault

    @property
    def has_fault(self) -> bool:
        return bool(self.status or self.has_other_fault_than_status or self.has_schedule)

    @property
    def has_other_fault_than_status(self) -> bool:
        """Says whether another fault than a status is set."""
        return self.break_after is not None or self.garbage or self.hang or self.empty

    @property
    def has_schedule(self) -> bool:
        return bool(self.first or self.every)

    @property
    def error_status(self) -> int | None:
        """Returns the status to fail with. A rule with a schedule but no fault means 500."""
        return self.status or (500 if self.has_schedule and not self.has_other_fault_than_status else None)


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Speed and faults of a simulated model server."""

    first_token_seconds: float = 0.0
    seconds_per_token: float = 0.0
    """Each streamed piece is a word and counts as one token."""
    summary_seconds: float = 0.0
    """Added to the time of a summary."""
    default_window: int = 128_000
    """Window of models whose name has no size."""
    max_recorded_requests: int = 1000
    faults: SimulatedFaults = field(default_factory=SimulatedFaults)


def parse_faults_from_name(model: str) -> SimulatedFaults | None:
    """Returns the faults that a model's name requests after ``!``; None if it requests none.

    Raises:
        InvalidRequest: an unknown key or a bad value.
    """
    _, separator, fault_text = model.partition("!")
    if not separator:
        return None
    kinds = {one.name: one.type for one in fields(SimulatedFaults)}
    values: dict[str, Any] = {}
    for part in filter(None, fault_text.split(",")):
        key, _, value = part.partition("=")
        if key not in kinds:
            raise InvalidRequest(f"{key!r} is no fault; expected one of {', '.join(kinds)}.", param="model")
        values[key] = _parse_fault_value(key, value, str(kinds[key]))
    return SimulatedFaults(**values)


def _parse_fault_value(key: str, value: str, kind: str) -> Any:
    try:
        if kind.startswith("bool"):
            return True
        if kind.startswith("int"):
            return _check_bounds(key, int(value))
        if kind.startswith("float"):
            return _check_bounds(key, float(value))
    except ValueError as error:
        raise InvalidRequest(f"Fault {key!r} needs a number, not {value!r}: {error}.", param="model") from error
    if value not in {"all", "summary", "answer"}:
        raise InvalidRequest(f"Fault {key!r} must be all, summary or answer, not {value!r}.", param="model")
    return value


def _check_bounds(key: str, number: float) -> float:
    minimum, maximum = STATUS_BOUNDS if key == "status" else (0, MAX_FAULT_NUMBER)
    if not minimum <= number <= maximum:
        raise ValueError(f"{number} is not between {minimum} and {maximum}")
    return number
