"""A circuit breaker: after several failures in a row, calls pause for a growing time."""

from __future__ import annotations

from collections.abc import Callable

_PAUSE_GROWTH = 2.0


class CircuitBreaker:
    """Closed: every call goes through. Open: no call does until the pause is over; then one call in each pause is a
    trial.

    Args:
        failure_threshold: how many failures in a row open it.
        pause_seconds: the first pause; each further one is twice as long, up to `max_pause_seconds`.
        max_pause_seconds: the longest pause.
        clock: monotonic seconds.

    Attributes:
        failure_count: how many failures in a row there were since the last success.
        is_open: whether it has failed too often.
    """

    def __init__(
        self, failure_threshold: int, pause_seconds: float, max_pause_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._failure_threshold = failure_threshold
        self._first_pause = self._pause = pause_seconds
        self._max_pause = max_pause_seconds
        self._clock = clock
        self._paused_since = 0.0
        self._has_trial = False
        self.failure_count = 0
        self.is_open = False

    @property
    def seconds_until_trial(self) -> float:
        """Returns the seconds until a trial is allowed; 0 if it is allowed now."""
        return max(0.0, self._paused_since + self._pause - self._clock()) if self.is_open else 0.0

    def try_enter(self, *, pauses: int = 1) -> bool:
        """Says whether a call may be made. A permitted call must end in `record_success`, `record_failure` or
        `cancel_trial`.

        Args:
            pauses: after how many pauses the call may be a trial.
        """
        if not self.is_open:
            return True
        if self._clock() < self._paused_since + pauses * self._pause:
            return False
        # The next trial waits another pause, not for the end of this one: a trial that hangs stops nobody for ever.
        self._paused_since = self._clock()
        self._has_trial = True
        return True

    def record_success(self) -> None:
        self.failure_count = 0
        self._pause = self._first_pause
        self._has_trial = False
        self.is_open = False

    def record_failure(self, *, may_open: bool = True) -> None:
        """Counts a failure. Without `may_open` it does not open a closed breaker."""
        self.failure_count += 1
        if self.is_open:
            self._pause = min(self._pause * _PAUSE_GROWTH, self._max_pause)
        elif not may_open or self.failure_count < self._failure_threshold:
            return
        self.is_open = True
        self._has_trial = False
        self._paused_since = self._clock()

    def cancel_trial(self) -> None:
        """Ends a trial without a result, so that the next call is one: its call was cancelled, or never made. Does
        nothing after a result."""
        if self._has_trial:
            self._has_trial = False
            self._paused_since -= self._pause
