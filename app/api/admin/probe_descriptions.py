"""FastAPI routes of the health probes, for /openapi.json and `/docs`. `app/api/edge/asgi_front.py` answers `GET` before
FastAPI does."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from app.api.admin.probes import HealthProbes
from app.api.resource_schemas import ErrorBody

NOT_READY_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": ErrorBody, "description": "The store is unavailable, or every provider has failed repeatedly."}
}


def build_health_routes(probes: HealthProbes) -> APIRouter:
    """Builds the routes of both probes."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process is alive")
    async def healthz() -> Response:
        return await probes.answer_liveness()

    @routes.get("/readyz", summary="Store, schema and a provider are available", responses=NOT_READY_RESPONSES)
    async def readyz() -> Response:
        return await probes.answer_readiness()

    return routes
