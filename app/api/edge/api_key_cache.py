"""API keys looked up in the store, and trusted for a moment: one look serves the requests of some seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from app.conversation.api_keys import ApiKey
from app.errors import StoreUnavailable
from app.store.contract import Store

UNKNOWN_KEY_CACHE_SECONDS: Final = 1.0
"""How long "there is no such key" is believed, at most: a key that was just made works at once."""
STALE_KEY_SECONDS: Final = 300.0
"""How long after a look a key still works while the store is away."""
RETRY_SECONDS: Final = 1.0
"""While the store is away, how long until it is asked again."""
MAX_CACHED_KEYS: Final = 10_000

Value = TypeVar("Value")


class _CachedKey(msgspec.Struct, frozen=True):
    key: ApiKey
    fetched_at: float
    """When the store last said so."""
    expires_at: float
    """When it is to be asked again."""


class ApiKeyCache:
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
        self._known: dict[str, _CachedKey] = {}
        self._unknown: dict[str, float] = {}
        """Apart, so that guesses never push out keys that exist."""

    async def find_key(self, digest: str) -> ApiKey | None:
        """The key with this digest, valid or not.

        Raises:
            StoreUnavailable: the store is away, and this key was not seen lately.
        """
        now = self._seconds()
        known = self._known.get(digest)
        if known is not None and now < known.expires_at:
            return known.key
        if now < self._unknown.get(digest, now):
            return None
        try:
            key = await self._store.find_api_key(digest)
        except StoreUnavailable:
            if known is None or now - known.fetched_at > STALE_KEY_SECONDS:
                raise
            _put(self._known, digest, msgspec.structs.replace(known, expires_at=now + RETRY_SECONDS))
            return known.key
        self.evict_key(digest)
        if key is None:
            _put(self._unknown, digest, now + min(UNKNOWN_KEY_CACHE_SECONDS, self._cache_seconds))
        else:
            _put(self._known, digest, _CachedKey(key, fetched_at=now, expires_at=now + self._cache_seconds))
        return key

    def evict_key(self, digest: str) -> None:
        """Ask the store the next time."""
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)


def _put(values: dict[str, Value], digest: str, value: Value) -> None:
    """Keep a value, and no more of them than are allowed: what was not looked up for longest goes first."""
    values.pop(digest, None)
    while len(values) >= MAX_CACHED_KEYS:
        del values[next(iter(values))]
    values[digest] = value
