"""A circuit breaker for each deployment: after several failures in a row, calls pause for a growing time."""

from __future__ import annotations

from collections.abc import Callable

_PAUSE_GROWTH = 2.0


class CircuitBreaker:
    """Closed: every call goes through. Open: no call does until the pause is over; then one call at a time is a trial.

    Only failures of the deployment itself count (no connection, no answer, 5xx), never a refusal of a request.

    Args:
        failure_threshold: how many failures in a row open it; 0: it is always open, so one call at a time goes through.
        pause_seconds: the first pause; each further one is twice as long, up to `max_pause_seconds`.
        max_pause_seconds: the longest pause.
        clock: monotonic seconds.

    Attributes:
        failure_count: how many failures in a row there were since the last success.
        is_open: whether it has failed too often.
    """

    __slots__ = (
        *(
            "_clock",
            "_failure_threshold",
            "_first_pause",
            "_max_pause",
            "_trial_allowed_at",
            "_pause",
            "_has_trial",
        ),
        *("failure_count", "is_open"),
    )

    def __init__(
        self, failure_threshold: int, pause_seconds: float, max_pause_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._failure_threshold = failure_threshold
        self._first_pause = self._pause = pause_seconds
        self._max_pause = max_pause_seconds
        self._clock = clock
        self.failure_count = 0
        self._trial_allowed_at = 0.0
        self._has_trial = False
        self.is_open = failure_threshold <= 0

    @property
    def seconds_until_trial(self) -> float:
        """Returns the seconds until a trial is allowed; 0 if it is allowed now, or under way."""
        return max(0.0, self._trial_allowed_at - self._clock()) if self.is_open else 0.0

    def try_enter(self) -> bool:
        """Says whether a call may be made. A permitted call must end in `record_success`, `record_failure` or
        `cancel_trial`.
        """
        if not self.is_open:
            return True
        # One trial at a time: a server that recovers must not get all waiting calls at once.
        if self._has_trial or self.seconds_until_trial > 0:
            return False
        self._has_trial = True
        return True

    def record_success(self) -> None:
        self.failure_count = 0
        self._pause = self._first_pause
        self._has_trial = False
        self.is_open = self._failure_threshold <= 0

    def record_failure(self) -> None:
        was_open = self.is_open
        self.failure_count += 1
        self.is_open = self.failure_count >= self._failure_threshold
        self._has_trial = False
        if not self.is_open:
            return
        if was_open:
            self._pause = min(self._pause * _PAUSE_GROWTH, self._max_pause)
        self._trial_allowed_at = self._clock() + self._pause

    def cancel_trial(self) -> None:
        """Ends a trial without a result: its call was cancelled, or never made."""
        self._has_trial = False
