"""`GET /v1/admin/costs`: what tenants, keys and models have cost, for operators. `GET /v1/costs`: what the caller's own
key has cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from msgspec.structs import asdict, replace
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import MAX_UNIX_SECONDS, Described, build_json_response, build_resource_router
from app.conversation.api_keys import extract_application_tenant
from app.conversations.api_keys import ApiKeys, KeyNames
from app.pipeline.turn.chat_request import Caller
from app.store.contract.usage import UsageGrouping, UsageQuery, UsageTotals
from app.store.usage_recorder import UsageRecorder

MAX_ROWS: Final = 1000


class CostObject(Described):
    """Sums over model calls. Fields by which `by` does not split are null. `cost_usd` has no cost of the
    `unpriced_calls`."""

    tenant: str | None
    tenant_name: str | None
    key_id: str | None
    key_name: str | None
    model: str | None
    day: str | None
    """The date in UTC."""
    requests: int
    unpriced_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: float | None


class CostList(Described):
    object: str
    since: int
    data: list[CostObject]
    has_more: bool


class OwnCostList(CostList):
    """`key_name`, `budget_usd` and `spent_usd`, in this month, are those of the caller's key."""

    key_name: str | None
    budget_usd: float | None
    spent_usd: float


Since = Annotated[
    int | None,
    Query(
        ge=0,
        le=MAX_UNIX_SECONDS,
        description="Unix seconds; the sums begin with that day (UTC). Left out: with this month.",
    ),
]
Daily = Annotated[bool, Query(description="Split by day, too.")]
MostRows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="The most rows, the highest cost first.")]


def build_cost_routes(
    usage: UsageRecorder, api_keys: ApiKeys, auth: Authenticator, *, now: Callable[[], datetime]
) -> APIRouter:
    """Builds the endpoints for costs."""
    routes = build_resource_router("/v1", "keys")
    admin, reads = Depends(auth.require_scope("admin")), Depends(auth.require_scope("read"))

    def find_month() -> datetime:
        return now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    async def build_page(query: UsageQuery, since: int | None) -> dict[str, Any]:
        begin = find_month() if since is None else datetime.fromtimestamp(since, UTC)
        begin = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        limit = query.limit or MAX_ROWS
        rows = await usage.sum_usage(replace(query, since_day=begin.date().isoformat(), limit=limit + 1))
        names = KeyNames(await api_keys.list_keys())
        return {
            "object": "list",
            "since": int(begin.timestamp()),
            "data": [_build_cost_object(row, names) for row in rows[:limit]],
            "has_more": len(rows) > limit,
        }

    @routes.get("/admin/costs", response_model=CostList)
    async def list_costs(
        since: Since = None,
        by: Annotated[UsageGrouping, Query(description="`key` splits by tenant and key.")] = "key",
        daily: Daily = False,
        limit: MostRows = MAX_ROWS,
        caller: Caller = admin,
    ) -> Response:
        """Costs of tenants, keys, models and days."""
        return build_json_response(await build_page(UsageQuery("", by, is_daily=daily, limit=limit), since))

    @routes.get("/costs", response_model=OwnCostList)
    async def list_own_costs(
        since: Since = None,
        by: Literal["model", "day"] = "model",
        daily: Daily = False,
        limit: MostRows = MAX_ROWS,
        caller: Caller = reads,
    ) -> Response:
        """What the caller's key has cost."""
        # A key's sums are its own in whatever tenant. Without a key, the sums of its tenant are the caller's.
        tenant = extract_application_tenant(caller.tenant) if caller.api_key_id is None else None
        own = UsageQuery("", by, daily, tenant, caller.api_key_id or "", limit)
        page = await build_page(own, since)
        month = replace(own, since_day=find_month().date().isoformat(), by="tenant", is_daily=False)
        spent = sum(row.cost_usd for row in await usage.sum_usage(month))
        key = {"key_name": caller.api_key_name, "budget_usd": caller.budget_usd, "spent_usd": spent}
        return build_json_response({**page, **key})

    return routes


def _build_cost_object(totals: UsageTotals, names: KeyNames) -> dict[str, Any]:
    # Without any price the sum would say that the calls cost nothing.
    is_unpriced = totals.unpriced_calls > 0 and totals.cost_usd == 0
    return {
        **{name: value for name, value in asdict(totals).items() if name in CostObject.model_fields},
        "tenant": totals.tenant or None,
        "tenant_name": names.find_tenant_name(totals.tenant),
        "key_id": totals.key_id or None,
        "key_name": names.find_key_name(totals.key_id),
        "model": totals.model or None,
        "day": totals.day or None,
        "cost_usd": None if is_unpriced else totals.cost_usd,
    }
