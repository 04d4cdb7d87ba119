"""Options for the speed and the faults of the simulated model. Pure.

Faults can also be requested in a model's name, which passes through any client and gateway:
``sim-8k!status=503,first=2`` fails the first two requests for exactly that name, ``sim!hang,on=summary`` never answers
a request for a summary. Keys are those of `SimulatedFaults`; a key without a value is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from app.errors import InvalidRequest

Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class SimulatedFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong, and when. Without any field set, nothing does."""

    status: Annotated[int, Meta(ge=200, le=999)] | None = None
    """Answer with this error status."""
    retry_after: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    """Seconds for the `Retry-After` header of that error."""
    break_after: Count | None = None
    """Cut a stream after this many chunks; a whole body in the middle."""
    garbage: bool = False
    """Answer 200 with data that is not JSON."""
    hang: bool = False
    """Accept the request and never answer."""
    empty: bool = False
    """Answer with blank text."""
    first: Count = 0
    """Only the first n requests fail; 0 means that all do."""
    on: Literal["all", "summary", "answer"] = "all"
    """Which requests are counted and fail."""

    @property
    def error_status(self) -> int | None:
        """Returns the status to fail with. A rule with a number of requests but no fault means 500."""
        has_other_fault = self.break_after is not None or self.garbage or self.hang or self.empty
        return self.status or (500 if self.first and not has_other_fault else None)


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
    pairs = (part.partition("=") for part in fault_text.split(",") if part)
    try:
        return msgspec.convert({key: value or "true" for key, _, value in pairs}, SimulatedFaults, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The faults {fault_text!r} are not valid: {error}.", param="model") from error
