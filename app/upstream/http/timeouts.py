"""Limits on the time an answer takes, for one timer for all of them: a timer for each call, let alone for each piece
of an answer, costs more than its parsing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class Watches:
    """The timer that all watches of a provider share. It looks at them when the first of them may be due."""

    __slots__ = ("_begun", "_due", "_timer")

    def __init__(self) -> None:
        self._begun: set[Watch] = set()
        self._due = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: Watch) -> None:
        self._begun.add(watch)

    def discard(self, watch: Watch) -> None:
        self._begun.discard(watch)

    def look_by(self, due: float) -> None:
        """Look at a loop time, if nothing is to be looked at before."""
        if due >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def close(self) -> None:
        """Look no more."""
        self._begun.clear()
        self._due = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer, self._due = None, NEVER
        now = asyncio.get_running_loop().time()
        for watch in tuple(self._begun):
            if watch.due(now) <= now:
                watch.stop()
                watch.expire()
        self.look_by(min((watch.due(now) for watch in self._begun), default=NEVER))


class Watch:
    """Calls `expire` once an answer was silent, or has gone on, for too long. Works from `begin` until `stop`, and may
    then begin again for the next answer.

    Attributes:
        waiting_since: loop time since when the next piece has been awaited; None while nobody waits for one, which is
            the reader's time and not the upstream's.
        now: the loop's clock, for setting it.
    """

    __slots__ = ("_ends_at", "_silence_seconds", "_watches", "expire", "now", "waiting_since")

    def __init__(self, watches: Watches, expire: Callable[[], None]) -> None:
        self._watches = watches
        self._silence_seconds = self._ends_at = NEVER
        self.expire = expire
        self.now: Callable[[], float] = time.monotonic
        self.waiting_since: float | None = None

    def begin(self, *, silence_seconds: float | None, ends_at: float | None) -> None:
        """Watch an answer whose first piece is awaited from now on.

        Args:
            silence_seconds: the longest wait for a piece; None is for ever.
            ends_at: loop time at which the answer must have ended; None for never.
        """
        self.now = asyncio.get_running_loop().time
        self.waiting_since = now = self.now()
        self._ends_at = NEVER if ends_at is None else ends_at
        self._silence_seconds = NEVER if silence_seconds is None else silence_seconds
        self._watches.add(self)
        self._watches.look_by(self.due(now))

    def limit_silence(self, seconds: float | None) -> None:
        """From now on another limit holds for a wait."""
        self._silence_seconds = NEVER if seconds is None else seconds
        self._watches.look_by(self.due(self.now()))

    def due(self, now: float) -> float:
        """Loop time at which it would be too long, as things are now."""
        silent_since = now if self.waiting_since is None else self.waiting_since
        return min(self._ends_at, silent_since + self._silence_seconds)

    def stop(self) -> None:
        self._watches.discard(self)

    def end(self) -> None:
        """Stop for good. Whoever was to be told is held no longer: it mostly holds this watch."""
        self.stop()
        self.expire = _tell_nobody


def _tell_nobody() -> None:
    pass
