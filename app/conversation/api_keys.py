"""The gateway's own API keys and what each may do. A key itself is shown once and never stored."""

from __future__ import annotations

import hashlib
import itertools
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

Scope = Literal["chat", "read", "manage", "admin"]
"""`chat` calls models; `read` reads conversations; `manage` changes and erases them; `admin` manages keys."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
END_USER_SEPARATOR: Final = "/"
"""Stands in a tenant behind the application's tenant, before the name of a part of it, such as one of its end users."""
OPERATOR_TENANT: Final = "operator"
"""The tenant of what the operator's token does without naming a tenant, such as chats in the console."""
CONTEXT_TENANT_SUFFIX: Final = f"{END_USER_SEPARATOR}context-only"
"""Ends the name of the tenant of conversations that are kept for continuing only (`store: false`)."""


class ApiKey(msgspec.Struct, frozen=True):
    """A stored API key, which is found by its digest."""

    id: str
    """`key_` and 24 hex digits: the key's name in lists, and for revoking it."""
    digest: str
    """The SHA-256 of the key, in hex. A key has 256 random bits, so a slow password hash would add nothing."""
    hint: str
    """The last four characters of the key."""
    name: str
    tenant: str
    """The owner of the conversations that the key gives access to. Several keys may share a tenant."""
    scopes: tuple[Scope, ...]
    created_at: datetime
    policy: str | None = None
    """The context policy of requests that name none."""
    models: tuple[str, ...] = ()
    """The names of models that the key may ask for, with the wildcards `*` and `?`. Empty: all models."""
    retention_days: int | None = None
    """Conversations of the tenant that were not used for this many days are erased."""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    budget_usd: float | None = None
    """What the key may spend in a calendar month (UTC), in US dollars. None: no limit."""
    pass_through: tuple[str, ...] | None = None
    """The paths below `/v1` that are passed through for the key, in place of its provider's list. None: that list."""
    requests_per_minute: int | None = None
    """In place of the settings' limit for each key. None: that limit."""
    tokens_per_minute: int | None = None
    """In place of the settings' limit for each key. None: that limit."""

    def is_valid_at(self, moment: datetime) -> bool:
        expired = self.expires_at is not None and self.expires_at <= moment
        return self.revoked_at is None and not expired


class KeyBudget(msgspec.Struct, frozen=True):
    """What an API key may spend in a calendar month."""

    key_id: str
    usd: float


def hash_api_key(secret: str) -> str:
    """Returns the digest by which a key is found."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def derive_context_tenant(tenant: str) -> str:
    """Returns the tenant of a tenant's conversations that are kept for continuing only. No credential leads to it, so
    no endpoint lists, searches or reads it (docs/decisions/0044)."""
    return f"{tenant}{CONTEXT_TENANT_SUFFIX}"


def is_context_tenant(tenant: str) -> bool:
    """Returns whether the conversations of a tenant are kept for continuing only."""
    return tenant.endswith(CONTEXT_TENANT_SUFFIX)


def belongs_to_tenant(tenant: str, owner: str) -> bool:
    """Returns whether a tenant is another one, or is derived from it: one of its end users, or what is kept for
    continuing only."""
    return tenant == owner or tenant.startswith(f"{owner}{END_USER_SEPARATOR}")


def list_enclosing_tenants(tenant: str) -> list[str]:
    """Returns a tenant and all tenants that it is derived from: `a`, `a/b` and `a/b/c` of `a/b/c`."""
    return list(itertools.accumulate(tenant.split(END_USER_SEPARATOR), f"{{}}{END_USER_SEPARATOR}{{}}".format))


def extract_application_tenant(tenant: str) -> str:
    """Returns the application's tenant of a tenant that is derived from it. Any other tenant is returned as it is."""
    return tenant.partition(END_USER_SEPARATOR)[0]
