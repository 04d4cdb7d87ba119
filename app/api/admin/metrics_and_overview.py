"""`/metrics` for Prometheus and `/v1/admin/overview` for people: numbers of all processes that serve together, without
any message's content."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.edge.request_reader import read_headers
from app.api.resource_schemas import Described, build_json_response, build_resource_router, describe_errors
from app.errors import InvalidApiKey, NotFound
from app.observability.overview import RangeName
from app.pipeline.turn.chat_request import Caller

METRICS_RESPONSE: Final = {
    "content": {"text/plain": {"schema": {"type": "string"}}},
    "description": "Prometheus' text format.",
}
METRICS_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: METRICS_RESPONSE,
    **describe_errors(
        {401: "The token of `telemetry.metrics_token` is missing or wrong.", 404: "Metrics are switched off."}
    ),
}


class OverviewObject(Described):
    """The numbers of all processes that serve together."""

    object: str
    version: str
    started_at: int
    uptime_seconds: int
    workers: int
    simulated: bool
    database: str
    now: dict[str, int]
    """What runs at this moment."""
    totals: dict[str, Any]
    """Totals since the start. Costs are calculated from list prices, and null if no price is known."""
    latency: dict[str, dict[str, float | None]]
    """Quantiles of durations in seconds; null if nothing was measured."""
    models: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    series: dict[str, Any]
    """Samples of the totals, `interval_seconds` apart."""


def build_metrics_routes(render: Callable[[str], tuple[bytes, str]] | None, *, token: str | None) -> APIRouter:
    """Builds the route `GET /metrics`.

    Args:
        render: renders the metrics for a header `Accept`, and returns their content type, too; None: metrics are off.
        token: the token that a caller must send; None: everybody may read.
    """
    routes = APIRouter(tags=["telemetry"])

    @routes.get("/metrics", responses=METRICS_RESPONSES, response_class=Response)
    async def metrics(request: Request) -> Response:
        """Numbers for Prometheus."""
        if token:
            _check_metrics_token(token, read_headers(request.scope).get("authorization", ""))
        if render is None:
            raise NotFound("Metrics are switched off.", hint="Set `telemetry.metrics: true`.")
        # In a thread, here and below: with several workers, reading their files takes up to 50 ms.
        body, content_type = await asyncio.to_thread(render, read_headers(request.scope).get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return routes


def build_overview_routes(overview: Callable[[RangeName], dict[str, Any]] | None, auth: Authenticator) -> APIRouter:
    """Builds the route `GET /v1/admin/overview`.

    Args:
        overview: returns the overview with the samples of a range; None: it is switched off.
    """
    routes = build_resource_router("/v1/admin", "telemetry")
    overseer = Depends(auth.require_operator())

    @routes.get("/overview", response_model=OverviewObject)
    async def overview_of_gateway(
        range: Annotated[RangeName, Query(description="Of the samples.")] = "hour", caller: Caller = overseer
    ) -> Response:
        """The gateway at a glance."""
        if overview is None:
            raise NotFound("The overview is switched off.", hint="Set `telemetry.metrics: true`.")
        return build_json_response(await asyncio.to_thread(overview, range))

    return routes


def _check_metrics_token(token: str, authorization: str) -> None:
    scheme, _, sent_token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(sent_token.strip().encode(), token.encode()):
        raise InvalidApiKey(
            "The token for /metrics is missing or wrong.", hint="Send the value of `telemetry.metrics_token`."
        )
