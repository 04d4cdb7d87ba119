"""A circuit breaker per deployment: after several failures in a row a place is left alone for a growing while."""

from __future__ import annotations

from collections.abc import Callable

_GROWTH = 2.0


class Breaker:
    """Closed: every call goes through. Open: none does until the pause is over; then one call at a time tries.

    Only failures of the place itself count (no connection, no answer, 5xx), never what it says of a request.

    Args:
        failures: how many in a row open it.
        pause_seconds: the first pause; each further one is twice as long, up to `max_pause_seconds`.
        clock: monotonic seconds.

    Attributes:
        is_open: it has failed too often.
    """

    __slots__ = (
        *("_clock", "_failed", "_failures", "_first_pause", "_max_pause", "_opens_at", "_pause", "_trying"),
        "is_open",
    )

    def __init__(
        self, failures: int, pause_seconds: float, max_pause_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._failures = failures
        self._first_pause = self._pause = pause_seconds
        self._max_pause = max_pause_seconds
        self._clock = clock
        self._failed = 0
        self._opens_at = 0.0
        self._trying = False
        self.is_open = failures <= 0

    @property
    def wait_seconds(self) -> float:
        """Until a call may try again; 0 where it may now, or one is trying."""
        return max(0.0, self._opens_at - self._clock()) if self.is_open else 0.0

    def enter(self) -> bool:
        """Whether a call may be made; one that may must end in `succeeded` or `failed`, or in `gave_up`."""
        if not self.is_open:
            return True
        if self._trying or self.wait_seconds > 0:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        self._failed = 0
        self._pause = self._first_pause
        self._trying = False
        self.is_open = self._failures <= 0

    def failed(self) -> None:
        was_open = self.is_open
        self._failed += 1
        self.is_open = self._failed >= self._failures
        self._trying = False
        if not self.is_open:
            return
        if was_open:
            self._pause = min(self._pause * _GROWTH, self._max_pause)
        self._opens_at = self._clock() + self._pause

    def gave_up(self) -> None:
        """The call that was on trial showed nothing: it was cancelled, or never made."""
        self._trying = False
