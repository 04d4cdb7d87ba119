"""API keys of the gateway's own: what each may do. The key itself is shown once and kept nowhere."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

Scope = Literal["chat", "read", "manage", "admin"]
"""`chat` asks models; `read` looks at conversations; `manage` changes and erases them; `admin` handles keys."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
END_USER_SEPARATOR: Final = "/"
"""In a tenant, between the application's own and what stands for one of its end users."""


class ApiKey(msgspec.Struct, frozen=True):
    """A key as it is stored: found by its digest."""

    id: str
    """`key_` and 24 hex digits; names it in lists and when it is revoked."""
    digest: str
    """SHA-256 of the key, in hex. A key has 256 random bits, so nothing slower is needed."""
    hint: str
    """The last four characters."""
    name: str
    tenant: str
    """Whose conversations it sees; several keys may share a tenant."""
    scopes: tuple[Scope, ...]
    created_at: datetime
    policy: str | None = None
    """The context policy of its requests that name none."""
    models: tuple[str, ...] = ()
    """Names that it may ask for, `*` and `?` being wildcards; none: all."""
    retention_days: int | None = None
    """Conversations of its tenant that rest for longer are erased."""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_valid_at(self, moment: datetime) -> bool:
        expired = self.expires_at is not None and self.expires_at <= moment
        return self.revoked_at is None and not expired


def hash_api_key(secret: str) -> str:
    """What a key is found by."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def extract_application_tenant(tenant: str) -> str:
    """The tenant of the application that an end user's tenant belongs to; any other is its own."""
    return tenant.partition(END_USER_SEPARATOR)[0]
