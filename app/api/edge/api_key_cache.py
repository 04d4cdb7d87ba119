"""API keys looked up in the store, and trusted for a moment: one look serves the requests of some seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from app.conversation.api_keys import ApiKey
from app.errors import StoreUnavailable
from app.store.contract import Store

UNKNOWN_SECONDS: Final = 1.0
"""How long "there is no such key" is believed, at most: a key that was just made works at once."""
TRUSTED_SECONDS: Final = 300.0
"""How long after a look a key still works while the store is away."""
RETRY_SECONDS: Final = 1.0
"""While the store is away, how long until it is asked again."""
MAX_KEYS: Final = 10_000

Value = TypeVar("Value")


class _Known(msgspec.Struct, frozen=True):
    key: ApiKey
    seen_at: float
    """When the store last said so."""
    until: float
    """When it is to be asked again."""


class KnownKeys:
    """Keys by digest.

    Args:
        cache_seconds: how long a key is trusted before the store is asked again; a revocation elsewhere takes that
            long.
        seconds: a clock that only goes forward.
    """

    def __init__(self, store: Store, *, cache_seconds: float, seconds: Callable[[], float]) -> None:
        self._store = store
        self._cache_seconds = cache_seconds
        self._seconds = seconds
        self._known: dict[str, _Known] = {}
        self._unknown: dict[str, float] = {}
        """Apart, so that guesses never push out keys that exist."""

    async def find(self, digest: str) -> ApiKey | None:
        """The key with this digest, valid or not.

        Raises:
            StoreUnavailable: the store is away, and this key was not seen lately.
        """
        now = self._seconds()
        known = self._known.get(digest)
        if known is not None and now < known.until:
            return known.key
        if now < self._unknown.get(digest, now):
            return None
        try:
            key = await self._store.key_of(digest)
        except StoreUnavailable:
            if known is None or now - known.seen_at > TRUSTED_SECONDS:
                raise
            _put(self._known, digest, msgspec.structs.replace(known, until=now + RETRY_SECONDS))
            return known.key
        self.forget(digest)
        if key is None:
            _put(self._unknown, digest, now + min(UNKNOWN_SECONDS, self._cache_seconds))
        else:
            _put(self._known, digest, _Known(key, seen_at=now, until=now + self._cache_seconds))
        return key

    def forget(self, digest: str) -> None:
        """Ask the store the next time."""
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)


def _put(values: dict[str, Value], digest: str, value: Value) -> None:
    """Keep a value, and no more of them than are allowed: what was not looked up for longest goes first."""
    values.pop(digest, None)
    while len(values) >= MAX_KEYS:
        del values[next(iter(values))]
    values[digest] = value
