"""Time limits for answers. A connection has one timer for all its answers: a timer for each answer, or even each piece,
costs more than parsing the answer. A timer that fires too early is set again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class ReplyTimeout:
    """Calls `on_expire` if an answer is silent for too long, or takes too long as a whole. Runs from `start` until
    `stop`, and may be started again for the next answer.

    Attributes:
        on_expire: called once per expiry.
        waiting_since: loop time since when the next piece is awaited; None while nobody waits for one: that time is the
            reader's, not the provider's.
        clock: the loop's clock, for setting `waiting_since`.
    """

    __slots__ = ("_deadline", "_next_check_at", "_silence_seconds", "_timer", "clock", "on_expire", "waiting_since")

    def __init__(self, on_expire: Callable[[], None]) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._silence_seconds = self._deadline = self._next_check_at = NEVER
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
        self.waiting_since = self.clock()
        self._deadline = NEVER if deadline is None else deadline
        self.set_silence_limit(silence_seconds)

    def set_silence_limit(self, seconds: float | None) -> None:
        """Sets another limit for the waits from now on."""
        self._silence_seconds = NEVER if seconds is None else seconds
        self._schedule_check()

    def expires_at(self, now: float) -> float:
        """Returns the loop time at which the answer is too late, if nothing changes."""
        silent_since = now if self.waiting_since is None else self.waiting_since
        return min(self._deadline, silent_since + self._silence_seconds)

    def stop(self) -> None:
        """Ends the limits. The timer stays for the next answer; if it fires before, it does nothing."""
        self._deadline = self._silence_seconds = NEVER

    def close(self) -> None:
        """Stops for good and releases `on_expire`, whose owner mostly holds this object: a reference cycle."""
        self.stop()
        self._cancel_check()
        self.on_expire = _do_nothing

    def _schedule_check(self) -> None:
        """Makes sure that there is a check when the answer may be too late. A check that comes too early stays."""
        if (check_at := self.expires_at(self.clock())) < self._next_check_at:
            self._cancel_check()
            self._next_check_at = check_at
            self._timer = asyncio.get_running_loop().call_at(check_at, self._check)

    def _cancel_check(self) -> None:
        self._next_check_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer, self._next_check_at = None, NEVER
        now = self.clock()
        if self.expires_at(now) <= now:
            self.stop()
            self.on_expire()
        else:
            self._schedule_check()


def _do_nothing() -> None:
    pass
