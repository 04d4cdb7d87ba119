"""API keys issued, listed and revoked: by the command line and by holders of an `admin` key alike."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

import msgspec

from app.conversation.api_keys import SCOPES, ApiKey, Scope, digest_of
from app.errors import InvalidRequest, NotFound
from app.store.contract import Store

KEY_PREFIX: Final = "ck_"
KEY_BYTES: Final = 32
HINT_CHARS: Final = 4
DEFAULT_SCOPES: Final[tuple[Scope, ...]] = ("chat", "read", "manage")
TENANT_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
MAX_NAME_CHARS: Final = 100


class Wish(msgspec.Struct, frozen=True):
    """What a key is to be. Without a tenant it gets a new one of its own."""

    name: str
    tenant: str | None = None
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    policy: str | None = None
    models: tuple[str, ...] = ()
    expires_at: datetime | None = None
    retention_days: int | None = None


class Issuing:
    """The gateway's own keys.

    Args:
        policies: names that a key may name.
        random_bytes: must not be foreseeable.
    """

    def __init__(
        self,
        store: Store,
        *,
        policies: Collection[str],
        now: Callable[[], datetime],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._policies = policies
        self._now = now
        self._random_bytes = random_bytes

    async def issue(self, wish: Wish) -> tuple[str, ApiKey]:
        """Make a key and keep its digest.

        Returns:
            The key itself, which nobody can tell again, and what is kept of it.

        Raises:
            InvalidRequest: it could never be used, or not as is wished.
        """
        now = self._now()
        self._check(wish, now)
        secret = KEY_PREFIX + base64.urlsafe_b64encode(self._random_bytes(KEY_BYTES)).decode().rstrip("=")
        key = ApiKey(
            id=f"key_{self._random_bytes(12).hex()}",
            digest=digest_of(secret),
            hint=secret[-HINT_CHARS:],
            name=wish.name.strip(),
            tenant=wish.tenant or f"ten_{self._random_bytes(12).hex()}",
            scopes=tuple(scope for scope in SCOPES if scope in wish.scopes),
            created_at=now,
            policy=wish.policy,
            models=wish.models,
            retention_days=wish.retention_days,
            expires_at=wish.expires_at,
        )
        await self._store.add_key(key)
        return secret, key

    async def keys(self, tenant: str | None = None) -> list[ApiKey]:
        """What is kept of a tenant's keys, or of everybody's, oldest first; those that are no longer valid too."""
        return await self._store.keys(tenant=tenant)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key's validity.

        Raises:
            NotFound: there is no such key.
        """
        key = await self._store.revoke_key(key_id)
        if key is None:
            raise NotFound(f"There is no API key {key_id!r}.", hint="Keys are listed by `concertina keys list`.")
        return key

    def _check(self, wish: Wish, now: datetime) -> None:
        if not 0 < len(wish.name.strip()) <= MAX_NAME_CHARS:
            raise InvalidRequest(f"`name` must have 1 to {MAX_NAME_CHARS} characters.", param="name")
        if wish.tenant is not None and not re.fullmatch(TENANT_PATTERN, wish.tenant):
            raise InvalidRequest(
                "`tenant` must be 1 to 64 letters, digits, '.', '_', ':' and '-', such as the `tenant` of another key.",
                param="tenant",
            )
        unknown = [scope for scope in wish.scopes if scope not in SCOPES]
        if unknown or not wish.scopes:
            what = f"{unknown[0]!r} is none" if unknown else "a key without any could do nothing"
            raise InvalidRequest(f"`scopes` must be some of {', '.join(SCOPES)}; {what}.", param="scopes")
        if wish.policy is not None and wish.policy not in self._policies:
            known = ", ".join(sorted(self._policies))
            raise InvalidRequest(f"There is no policy {wish.policy!r}; known are {known}.", param="policy")
        if any(not pattern.strip() for pattern in wish.models):
            raise InvalidRequest("`models` must be names of models, with '*' and '?' as wildcards.", param="models")
        if wish.expires_at is not None and wish.expires_at <= now:
            raise InvalidRequest("`expires_at` must lie in the future.", param="expires_at")
        if wish.retention_days is not None and wish.retention_days < 1:
            raise InvalidRequest("`retention_days` must be at least 1.", param="retention_days")
