"""Creates, lists, changes and revokes API keys, for the command line and for the endpoints below `/v1/admin/keys`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

import msgspec

from app.conversation.api_keys import (
    END_USER_SEPARATOR,
    OPERATOR_TENANT,
    SCOPES,
    ApiKey,
    Scope,
    extract_application_tenant,
    hash_api_key,
)
from app.conversation.names import check_name
from app.errors import InvalidRequest, NotFound
from app.store.contract.keys import KeyStore
from app.store.contract.usage import UsageQuery, UsageReader

KEY_PREFIX: Final = "ck_"
GENERATED_TENANT_PREFIX: Final = "ten_"
"""Begins the tenant of a key for which nobody chose one."""
KEY_BYTES: Final = 32
HINT_CHARS: Final = 4
DEFAULT_SCOPES: Final[tuple[Scope, ...]] = ("chat", "read", "manage")
TENANT_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
_END_USER_TENANT: Final = re.compile(rf"([^/]*){END_USER_SEPARATOR}[0-9a-f]{{32}}")
MAX_NAME_CHARS: Final = 100
MAX_BUDGET_USD: Final = 1_000_000_000
MAX_RATE: Final = 1_000_000_000
"""The most requests or tokens of a minute that a limit may name."""


class NewApiKey(msgspec.Struct, frozen=True):
    """The properties of a new key. Without `tenant` the key gets a new tenant."""

    name: str
    tenant: str | None = None
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    policy: str | None = None
    models: tuple[str, ...] = ()
    expires_at: datetime | None = None
    retention_days: int | None = None
    budget_usd: float | None = None
    pass_through: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(eq=False)
class ApiKeys:
    """Manages the gateway's API keys.

    Args:
        usage: reads what the keys have cost.
        policies: the names of all policies.
        random_bytes: a cryptographically secure source.
    """

    store: KeyStore
    _: KW_ONLY
    usage: UsageReader
    policies: Collection[str]
    now: Callable[[], datetime]
    random_bytes: Callable[[int], bytes]

    async def create_key(self, new_key: NewApiKey) -> tuple[str, ApiKey]:
        """Creates a key and stores its digest.

        Returns:
            The secret, which is not stored and cannot be shown again, and the stored key.

        Raises:
            InvalidRequest: a property is invalid.
        """
        now = self.now()
        self._check_new_key(new_key, now)
        # Hex has no `-`: a command takes a hint that begins with it for an option.
        secret = KEY_PREFIX + self.random_bytes(KEY_BYTES).hex()
        chosen = {
            **msgspec.structs.asdict(new_key),
            "name": new_key.name.strip(),
            "tenant": new_key.tenant or f"{GENERATED_TENANT_PREFIX}{self.random_bytes(12).hex()}",
            "scopes": tuple(scope for scope in SCOPES if scope in new_key.scopes),
        }
        key = ApiKey(
            id=f"key_{self.random_bytes(12).hex()}",
            digest=hash_api_key(secret),
            hint=secret[-HINT_CHARS:],
            created_at=now,
            **chosen,
        )
        await self.store.add_api_key(key)
        return secret, key

    async def list_keys(self, tenant: str | None = None) -> list[ApiKey]:
        """Returns the keys of a tenant, or of all tenants, oldest first, with expired and revoked ones."""
        return await self.store.list_api_keys(tenant=tenant)

    async def read_month_costs(self) -> dict[str, float]:
        """Returns what each key has cost in this calendar month (UTC), in US dollars, by the key's id. Keys that were
        not used are missing."""
        month_start = self.now().date().replace(day=1).isoformat()
        costs: dict[str, float] = {}
        for totals in await self.usage.sum_usage(UsageQuery(month_start, "key")):
            costs[totals.key_id] = costs.get(totals.key_id, 0.0) + totals.cost_usd
        return costs

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revokes a key.

        Raises:
            NotFound: there is no such key.
        """
        return _require_key(await self.store.revoke_api_key(key_id), key_id)

    async def change_budget(self, key_id: str, budget_usd: float | None) -> ApiKey:
        """Changes what a key may spend in a month; what it has spent stays. None: no limit.

        Raises:
            InvalidRequest: the budget is invalid.
            NotFound: there is no such key.
        """
        _check_budget(budget_usd)
        return _require_key(await self.store.set_api_key_budget(key_id, budget_usd), key_id)

    def _check_new_key(self, new_key: NewApiKey, now: datetime) -> None:
        if not 0 < len(new_key.name.strip()) <= MAX_NAME_CHARS:
            raise InvalidRequest(f"`name` must have 1 to {MAX_NAME_CHARS} characters.", param="name")
        for param, texts in (("name", [new_key.name]), ("models", new_key.models)):
            for text in texts:
                check_name(text, param)
        if new_key.tenant is not None:
            check_tenant(new_key.tenant, is_operator="admin" in new_key.scopes)
        unknown = [scope for scope in new_key.scopes if scope not in SCOPES]
        if unknown or not new_key.scopes:
            problem = f"{unknown[0]!r} is none" if unknown else "a key without any could do nothing"
            raise InvalidRequest(f"`scopes` must be some of {', '.join(SCOPES)}; {problem}.", param="scopes")
        if new_key.policy is not None and new_key.policy not in self.policies:
            known = ", ".join(sorted(self.policies))
            raise InvalidRequest(f"There is no policy {new_key.policy!r}; known are {known}.", param="policy")
        if any(not pattern.strip() for pattern in new_key.models):
            raise InvalidRequest("`models` must be names of models, with '*' and '?' as wildcards.", param="models")
        if new_key.expires_at is not None and new_key.expires_at <= now:
            raise InvalidRequest("`expires_at` must lie in the future.", param="expires_at")
        if new_key.retention_days is not None and new_key.retention_days < 1:
            raise InvalidRequest("`retention_days` must be at least 1.", param="retention_days")
        if new_key.pass_through is not None and any(not path.strip() for path in new_key.pass_through):
            raise InvalidRequest("`pass_through` must be paths below /v1, or '*'.", param="pass_through")
        for name in ("requests_per_minute", "tokens_per_minute"):
            limit = getattr(new_key, name)
            if limit is not None and not 1 <= limit <= MAX_RATE:
                raise InvalidRequest(f"`{name}` must be 1 to {MAX_RATE:,}.", param=name)
        _check_budget(new_key.budget_usd)


class KeyNames:
    """The names of keys, and of tenants that have no name of their own.

    Args:
        keys: oldest first.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._by_id = {key.id: key.name for key in keys}
        self._by_tenant = {key.tenant: key.name for key in reversed(keys)}

    def find_key_name(self, key_id: str | None) -> str | None:
        return None if key_id is None else self._by_id.get(key_id)

    def find_tenant_name(self, tenant: str | None) -> str | None:
        """Returns the name of the application's oldest key, if its tenant was generated."""
        application = extract_application_tenant(tenant or "")
        return self._by_tenant.get(application) if application.startswith(GENERATED_TENANT_PREFIX) else None


async def read_key_names(keys: KeyStore) -> KeyNames:
    """Reads the names of all keys, also of expired and revoked ones."""
    return KeyNames(await keys.list_api_keys())


def check_tenant(tenant: str, *, is_operator: bool = False, allows_end_user: bool = False) -> None:
    """Checks a tenant that an operator has typed.

    Args:
        is_operator: whoever acts for the tenant has the operator's rights anyway.
        allows_end_user: the tenant may be that of an application's end user.

    Raises:
        InvalidRequest: the text is no tenant, or the tenant is the operator's own.
    """
    end_user = _END_USER_TENANT.fullmatch(tenant) if allows_end_user else None
    application = end_user[1] if end_user else tenant
    if not re.fullmatch(TENANT_PATTERN, application):
        raise InvalidRequest(
            "`tenant` must be 1 to 64 letters, digits, '.', '_', ':' and '-', such as the `tenant` of another key.",
            param="tenant",
        )
    if application == OPERATOR_TENANT and not is_operator:
        raise InvalidRequest(
            f"The tenant {OPERATOR_TENANT!r} is that of the operator's token.", param="tenant", hint="Name another one."
        )


def _check_budget(budget_usd: float | None) -> None:
    if budget_usd is not None and not 0 < budget_usd <= MAX_BUDGET_USD:
        raise InvalidRequest(
            f"`budget_usd` must be dollars for a month: more than 0 and at most {MAX_BUDGET_USD:,}.", param="budget_usd"
        )


def _require_key(key: ApiKey | None, key_id: str) -> ApiKey:
    if key is None:
        raise NotFound(f"There is no API key {key_id!r}.", hint="`concertina keys list` lists the keys.")
    return key
