"""`/v1/admin/keys`: lists, makes, changes and revokes the gateway's API keys. The caller needs the scope `admin`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from msgspec.structs import asdict
from pydantic import Field
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    MAX_UNIX_SECONDS,
    After,
    Described,
    Limit,
    Name,
    Page,
    Strict,
    build_json_response,
    build_list_page,
    build_resource_router,
)
from app.conversation.api_keys import ApiKey, Scope
from app.conversations.api_keys import (
    DEFAULT_SCOPES,
    MAX_BUDGET_USD,
    MAX_NAME_CHARS,
    MAX_RATE,
    TENANT_PATTERN,
    ApiKeys,
    NewApiKey,
)
from app.errors import InvalidRequest, NotFound
from app.pipeline.turn.chat_request import Caller

DEFAULT_PAGE_SIZE: Final = 20
Budget = Annotated[
    float | None,
    Field(
        gt=0,
        le=MAX_BUDGET_USD,
        description="US dollars for each calendar month (UTC). A key that has spent them gets 429 `budget_exceeded` "
        "until the next month. Null: no limit.",
    ),
]

Rate = Annotated[
    int | None,
    Field(ge=1, le=MAX_RATE, description="In place of the settings' limit for each key. Null: that limit."),
]


class NewKeyRequest(Strict):
    """The properties of a new key."""

    name: Annotated[
        str,
        Field(max_length=MAX_NAME_CHARS, pattern=r"\S", description="A name for people, such as the application's."),
    ]
    tenant: Annotated[
        str | None,
        Field(
            pattern=TENANT_PATTERN,
            description="The tenant whose conversations it sees: that of another key. Left out: a new tenant.",
        ),
    ] = None
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = DEFAULT_SCOPES
    policy: Annotated[Name | None, Field(description="The context policy for requests that name none.")] = None
    models: Annotated[
        tuple[Annotated[str, Field(pattern=r"\S")], ...],
        Field(description="Models that it may ask for, with the wildcards `*` and `?`. Empty: all."),
    ] = ()
    expires_at: Annotated[int | None, Field(le=MAX_UNIX_SECONDS, description="Unix seconds.")] = None
    retention_days: Annotated[
        int | None,
        Field(
            ge=1, le=36_500, description="Days without a message after which conversations of its tenant are erased."
        ),
    ] = None
    budget_usd: Budget = None
    pass_through: Annotated[
        tuple[Annotated[str, Field(pattern=r"\S")], ...] | None,
        Field(
            description="Paths below `/v1` that are passed through for it, in place of those of "
            "`providers.<name>.pass_through`. Null: those."
        ),
    ] = None
    requests_per_minute: Rate = None
    tokens_per_minute: Rate = None


class KeyChange(Strict):
    """What is changed of a key."""

    budget_usd: Budget


class KeyObject(Described):
    """A key without its secret."""

    id: str
    object: str
    name: str
    hint: str
    tenant: str
    scopes: list[Scope]
    policy: str | None
    models: list[str]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    retention_days: int | None
    budget_usd: float | None
    spent_usd: float
    pass_through: list[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None


class NewKeyObject(KeyObject):
    """A new key. No other answer has the secret, `key`."""

    key: str


def build_api_key_routes(api_keys: ApiKeys, auth: Authenticator) -> APIRouter:
    """Builds the endpoints for API keys."""
    routes = build_resource_router("/v1/admin", "keys")
    admin = Depends(auth.require_scope("admin"))

    @routes.get("/keys", response_model=Page[KeyObject])
    async def list_keys(
        limit: Limit = DEFAULT_PAGE_SIZE,
        after: After = None,
        tenant: Annotated[Name | None, Query(description="Only keys of this tenant.")] = None,
        caller: Caller = admin,
    ) -> Response:
        """List API keys."""
        keys = await api_keys.list_keys(tenant)
        if after is not None:
            keys = _select_keys_after(keys, after)
        costs = await api_keys.read_month_costs()
        return build_json_response(
            build_list_page([build_key_object(key, costs) for key in keys[:limit]], has_more=len(keys) > limit)
        )

    @routes.post("/keys", response_model=NewKeyObject)
    async def create_key(new_key: NewKeyRequest, caller: Caller = admin) -> Response:
        """Make an API key."""
        secret, key = await api_keys.create_key(
            NewApiKey(**new_key.model_dump(exclude={"expires_at"}), expires_at=_parse_expiry(new_key.expires_at))
        )
        # The digest may be cached as unknown, and the new key must work at once.
        auth.evict_key(key)
        return build_json_response({**build_key_object(key, {}), "key": secret})

    @routes.post("/keys/{key_id}", response_model=KeyObject)
    async def update_key(key_id: Name, change: KeyChange, caller: Caller = admin) -> Response:
        """Change the budget of an API key."""
        key = await api_keys.change_budget(key_id, change.budget_usd)
        auth.evict_key(key)
        return build_json_response(build_key_object(key, await api_keys.read_month_costs()))

    @routes.delete("/keys/{key_id}", response_model=KeyObject)
    async def revoke_key(key_id: Name, caller: Caller = admin) -> Response:
        """Revoke an API key."""
        key = await api_keys.revoke_key(key_id)
        auth.evict_key(key)
        return build_json_response(build_key_object(key, await api_keys.read_month_costs()))

    return routes


def build_key_object(key: ApiKey, month_costs: Mapping[str, float]) -> dict[str, Any]:
    """Builds the JSON object of a key; it has neither the secret nor its digest.

    Args:
        month_costs: as `ApiKeys.read_month_costs` returns them.
    """
    shown = {name: value for name, value in asdict(key).items() if name in KeyObject.model_fields}
    return {
        **shown,
        "object": "api_key",
        "hint": f"…{key.hint}",
        "created_at": _to_unix_seconds(key.created_at),
        "expires_at": _to_unix_seconds(key.expires_at),
        "revoked_at": _to_unix_seconds(key.revoked_at),
        "spent_usd": month_costs.get(key.id, 0.0),
    }


def _select_keys_after(keys: list[ApiKey], after: str) -> list[ApiKey]:
    index = next((index for index, key in enumerate(keys) if key.id == after), None)
    if index is None:
        raise NotFound(f"There is no API key {after!r}.", param="after")
    return keys[index + 1 :]


def _parse_expiry(unix_seconds: int | None) -> datetime | None:
    if unix_seconds is None:
        return None
    if unix_seconds <= 0:
        raise InvalidRequest("`expires_at` must lie in the future.", param="expires_at")
    return datetime.fromtimestamp(unix_seconds, UTC)


def _to_unix_seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
