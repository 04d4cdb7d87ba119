"""Time limits for answers, with one timer for all calls of a provider: a timer for each call, or even each piece, costs
more than parsing the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class TimeoutTimer:
    """The timer that all time limits of a provider share. It checks them when the first one may be due."""

    __slots__ = ("_next_check_at", "_running_timeouts", "_timer")

    def __init__(self) -> None:
        self._running_timeouts: set[ReplyTimeout] = set()
        self._next_check_at = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def add(self, timeout: ReplyTimeout) -> None:
        self._running_timeouts.add(timeout)

    def discard(self, timeout: ReplyTimeout) -> None:
        self._running_timeouts.discard(timeout)

    def schedule_check(self, check_at: float) -> None:
        """Schedules a check at a loop time, unless an earlier one is scheduled."""
        if check_at >= self._next_check_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next_check_at = check_at
        self._timer = asyncio.get_running_loop().call_at(check_at, self._expire_overdue)

    def close(self) -> None:
        """Ends all checks."""
        self._running_timeouts.clear()
        self._next_check_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_overdue(self) -> None:
        self._timer, self._next_check_at = None, NEVER
        now = asyncio.get_running_loop().time()
        for timeout in tuple(self._running_timeouts):
            if timeout.expires_at(now) <= now:
                timeout.stop()
                timeout.on_expire()
        self.schedule_check(min((watch.expires_at(now) for watch in self._running_timeouts), default=NEVER))


class ReplyTimeout:
    """Calls `on_expire` if an answer is silent for too long, or takes too long as a whole. Runs from `start` until
    `stop`, and may be started again for the next answer.

    Attributes:
        on_expire: called once per expiry.
        waiting_since: loop time since when the next piece is awaited; None while nobody waits for one: that time is the
            reader's, not the provider's.
        clock: the loop's clock, for setting `waiting_since`.
    """

    __slots__ = ("_deadline", "_silence_seconds", "_timer", "clock", "on_expire", "waiting_since")

    def __init__(self, timer: TimeoutTimer, on_expire: Callable[[], None]) -> None:
        self._timer = timer
        self._silence_seconds = self._deadline = NEVER
        self.on_expire = on_expire
        self.clock: Callable[[], float] = time.monotonic
        self.waiting_since: float | None = None

    def start(self, *, silence_seconds: float | None, deadline: float | None) -> None:
        """Starts the limits of an answer whose first piece is awaited from now on.

        Args:
            silence_seconds: the longest wait for a piece; None is for ever.
            deadline: loop time at which the answer must have ended; None for never.
        """
        self.clock = asyncio.get_running_loop().time
        self.waiting_since = now = self.clock()
        self._deadline = NEVER if deadline is None else deadline
        self._silence_seconds = NEVER if silence_seconds is None else silence_seconds
        self._timer.add(self)
        self._timer.schedule_check(self.expires_at(now))

    def set_silence_limit(self, seconds: float | None) -> None:
        """Sets another limit for the waits from now on."""
        self._silence_seconds = NEVER if seconds is None else seconds
        self._timer.schedule_check(self.expires_at(self.clock()))

    def expires_at(self, now: float) -> float:
        """Returns the loop time at which the answer is too late, if nothing changes."""
        silent_since = now if self.waiting_since is None else self.waiting_since
        return min(self._deadline, silent_since + self._silence_seconds)

    def stop(self) -> None:
        self._timer.discard(self)

    def close(self) -> None:
        """Stops for good and releases `on_expire`, whose owner mostly holds this object: a reference cycle."""
        self.stop()
        self.on_expire = _do_nothing


def _do_nothing() -> None:
    pass
