"""`GET /v1/admin/costs`: what tenants, keys and models have cost. The caller needs the operator's right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from msgspec.structs import asdict
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import MAX_UNIX_SECONDS, Described, build_json_response, build_resource_router
from app.conversations.api_keys import ApiKeys, KeyNames
from app.pipeline.chat_request import Caller
from app.store.contract.usage import UsageGrouping, UsageTotals
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


def build_cost_routes(
    usage: UsageRecorder, api_keys: ApiKeys, auth: Authenticator, *, now: Callable[[], datetime]
) -> APIRouter:
    """Builds the endpoint for costs."""
    routes = build_resource_router("/v1/admin", "keys")
    admin = Depends(auth.require_scope("admin"))

    @routes.get("/costs", response_model=CostList)
    async def list_costs(
        since: Annotated[
            int | None,
            Query(
                ge=0,
                le=MAX_UNIX_SECONDS,
                description="Unix seconds; the sums begin with that day (UTC). Left out: with this month.",
            ),
        ] = None,
        by: Annotated[UsageGrouping, Query(description="`key` splits by tenant and key.")] = "key",
        limit: Annotated[
            int, Query(ge=1, le=MAX_ROWS, description="The most rows, the highest cost first.")
        ] = MAX_ROWS,
        caller: Caller = admin,
    ) -> Response:
        """Costs of tenants, keys and models."""
        begin = now().replace(day=1) if since is None else datetime.fromtimestamp(since, UTC)
        begin = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        rows = await usage.sum_usage(since_day=begin.date().isoformat(), by=by, limit=limit + 1)
        names = KeyNames(await api_keys.list_keys())
        return build_json_response(
            {
                "object": "list",
                "since": int(begin.timestamp()),
                "data": [_build_cost_object(row, names) for row in rows[:limit]],
                "has_more": len(rows) > limit,
            }
        )

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
        "cost_usd": None if is_unpriced else totals.cost_usd,
    }
