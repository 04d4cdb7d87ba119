"""Limits on the time an answer takes, for one timer an answer: a timer for each piece costs more than its parsing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Calls `expire` once an answer was silent, or has gone on, for too long. Works from its making until `stop`.

    Attributes:
        waiting_since: loop time since when the next piece has been awaited; None while nobody waits for one, which is
            the reader's time and not the upstream's.
        now: the loop's clock, for setting it.

    Args:
        silence_seconds: the longest wait for a piece; None is for ever.
        ends_at: loop time at which the answer must have ended; None for never.
    """

    __slots__ = ("_ends_at", "_expire", "_loop", "_silence_seconds", "_timer", "now", "waiting_since")

    def __init__(self, expire: Callable[[], None], *, silence_seconds: float | None, ends_at: float | None) -> None:
        self._expire = expire
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.now = self._loop.time
        self.waiting_since: float | None = self.now()
        self.limit_silence(silence_seconds)

    def limit_silence(self, seconds: float | None) -> None:
        """From now on another limit holds for a wait."""
        self._silence_seconds = seconds
        self.stop()
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self.now()
        waiting_since = now if self.waiting_since is None else self.waiting_since
        due = [] if self._ends_at is None else [self._ends_at]
        if self._silence_seconds is not None:
            due.append(waiting_since + self._silence_seconds)
        if due and min(due) <= now:
            self._expire()
        elif due:
            self._timer = self._loop.call_at(min(due), self._look)
