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
    """The timer that all time limits of a provider share. It checks them when the first one may be due.

    Attributes:
        running_timeouts: the time limits of the answers under way.
        next_check_at: the loop time of the next check.
    """

    __slots__ = ("_timer", "next_check_at", "running_timeouts")

    def __init__(self) -> None:
        self.running_timeouts: set[ReplyTimeout] = set()
        self.next_check_at = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def schedule_check(self, check_at: float) -> None:
        """Schedules a check at a loop time before `next_check_at`, in place of the one that is scheduled."""
        if self._timer is not None:
            self._timer.cancel()
        self.next_check_at = check_at
        self._timer = asyncio.get_running_loop().call_at(check_at, self._expire_overdue)

    def close(self) -> None:
        """Ends all checks."""
        self.running_timeouts.clear()
        self.next_check_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_overdue(self) -> None:
        self._timer, self.next_check_at = None, NEVER
        now = asyncio.get_running_loop().time()
        for timeout in tuple(self.running_timeouts):
            if timeout.expires_at(now) <= now:
                timeout.stop()
                timeout.on_expire()
        check_at = min((timeout.expires_at(now) for timeout in self.running_timeouts), default=NEVER)
        # A timeout that was started in `on_expire` may have scheduled an earlier check.
        if check_at < self.next_check_at:
            self.schedule_check(check_at)


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
        self._timer.running_timeouts.add(self)
        # The first limits of all answers are mostly the same, so the next check mostly comes early enough.
        if (check_at := min(self._deadline, now + self._silence_seconds)) < self._timer.next_check_at:
            self._timer.schedule_check(check_at)

    def set_silence_limit(self, seconds: float | None) -> None:
        """Sets another limit for the waits from now on."""
        self._silence_seconds = NEVER if seconds is None else seconds
        if (check_at := self.expires_at(self.clock())) < self._timer.next_check_at:
            self._timer.schedule_check(check_at)

    def expires_at(self, now: float) -> float:
        """Returns the loop time at which the answer is too late, if nothing changes."""
        silent_since = now if self.waiting_since is None else self.waiting_since
        return min(self._deadline, silent_since + self._silence_seconds)

    def stop(self) -> None:
        self._timer.running_timeouts.discard(self)

    def close(self) -> None:
        """Stops for good and releases `on_expire`, whose owner mostly holds this object: a reference cycle."""
        self.stop()
        self.on_expire = _do_nothing


def _do_nothing() -> None:
    pass
