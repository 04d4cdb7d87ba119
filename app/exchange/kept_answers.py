"""Answers kept in memory for a while, for whoever asks the same again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Kept = TypeVar("Kept")

MOST_ENTRIES: Final = 1_000


class KeptAnswers(Generic[Kept]):
    """A bounded memory, one value for a name. What is oldest goes first.

    Args:
        clock: monotonic seconds.
        seconds: how long a value is kept.
        most_bytes: of all of them together.
    """

    def __init__(self, clock: Callable[[], float], *, seconds: float, most_bytes: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._entries: dict[Hashable, tuple[Kept, int, float]] = {}
        """Each with its size and the second until which it is kept."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, name: Hashable, value: Kept, size_bytes: int) -> None:
        """Keep a value, in place of one of the same name; not if it is too large."""
        self.drop(name)
        if size_bytes > self._most_bytes:
            return
        entries = self._entries
        entries[name] = value, size_bytes, self._clock() + self._seconds
        self._size_bytes += size_bytes
        while len(entries) > MOST_ENTRIES or self._size_bytes > self._most_bytes:
            self.drop(next(iter(entries)))

    def get(self, name: Hashable) -> Kept | None:
        """The value of this name, if its time is not over."""
        if not self._entries:
            return None
        now = self._clock()
        while self._entries and (oldest := next(iter(self._entries.items())))[1][2] <= now:
            self.drop(oldest[0])
        entry = self._entries.get(name)
        return None if entry is None else entry[0]

    def drop(self, name: Hashable) -> None:
        """Forget the value of this name, if there is one."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._size_bytes -= entry[1]
