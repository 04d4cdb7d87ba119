"""Caches API keys for some seconds, so that not every request reads its key from the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from app.conversation.api_keys import ApiKey
from app.errors import StoreUnavailable
from app.store.contract.keys import KeyStore

UNKNOWN_KEY_CACHE_SECONDS: Final = 1.0
"""How long the answer "there is no such key" is cached, at most. It is short, so that a new key works soon."""
STALE_KEY_SECONDS: Final = 300.0
"""How long after its last read a key still works while the store is unavailable (decision 18)."""
RETRY_SECONDS: Final = 1.0
"""How long a stale key is used before the unavailable store is asked again."""
MAX_CACHED_KEYS: Final = 10_000

Value = TypeVar("Value")


class _CachedKey(msgspec.Struct, frozen=True):
    key: ApiKey
    fetched_at: float
    """When the key was last read from the store."""
    expires_at: float
    """When the key must be read again."""


class ApiKeyCache:
    """Finds keys by digest, in memory or in the store.

    Args:
        cache_seconds: how long a key is used before it is read again. A revocation by another process takes effect
            after this time.
        seconds: a monotonic clock.
        max_keys: how many keys are cached, and how many unknown digests.
    """

    def __init__(
        self, store: KeyStore, *, cache_seconds: float, seconds: Callable[[], float], max_keys: int = MAX_CACHED_KEYS
    ) -> None:
        self._store = store
        self._cache_seconds = cache_seconds
        self._seconds = seconds
        self._max_keys = max_keys
        self._known: dict[str, _CachedKey] = {}
        self._unknown: dict[str, float] = {}
        """Unknown digests, with the time until they are looked up again. They are kept apart, so that guessed keys do
        not evict existing ones."""

    async def find_key(self, digest: str) -> ApiKey | None:
        """Returns the key with this digest, whether or not it is still valid; None if there is none.

        Raises:
            StoreUnavailable: the store is unavailable, and the key was not read in the last `STALE_KEY_SECONDS`.
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
            # Answers can be given without the store, so a key that was valid lately is still let in.
            self._put(self._known, digest, msgspec.structs.replace(known, expires_at=now + RETRY_SECONDS))
            return known.key
        self.evict_key(digest)
        if key is None:
            self._put(self._unknown, digest, now + min(UNKNOWN_KEY_CACHE_SECONDS, self._cache_seconds))
        else:
            self._put(self._known, digest, _CachedKey(key, fetched_at=now, expires_at=now + self._cache_seconds))
        return key

    def evict_key(self, digest: str) -> None:
        """Forgets a key, so that the next lookup reads it from the store."""
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)

    def _put(self, values: dict[str, Value], digest: str, value: Value) -> None:
        """Stores a value. If the cache is full, the value that was stored first is evicted."""
        values.pop(digest, None)
        while len(values) >= self._max_keys:
            del values[next(iter(values))]
        values[digest] = value
