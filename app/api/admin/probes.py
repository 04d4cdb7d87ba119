"""The health probes: `/healthz` says that the process lives, `/readyz` that it can answer requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from app.api.resource_schemas import build_json_response, describe_errors
from app.store.contract.store import StoreInfo

NOT_READY_RESPONSES: Final = describe_errors({503: "The store is unavailable, or the process is about to stop."})


def build_health_routes(
    check_store: Callable[[], Awaitable[StoreInfo]],
    *,
    version: str,
    is_stopping: Callable[[], bool],
    list_dead_loops: Callable[[], Sequence[str]],
) -> APIRouter:
    """Builds the routes of both probes, for load balancers and orchestrators.

    Args:
        check_store: `Store.check`.
        version: the gateway's version, shown by `/healthz`.
        is_stopping: whether the process is about to stop.
        list_dead_loops: returns the names of background loops that have ended by mistake.
    """
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def healthz() -> Response:
        """The process is alive."""
        return build_json_response({"status": "ok", "version": version})

    @routes.get("/readyz", responses=NOT_READY_RESPONSES)
    async def readyz() -> Response:
        """Store and schema are available.

        503 also while the process is about to stop. Providers do not count: one that is away is away for every process,
        and one client's requests could make one seem so.
        """
        if is_stopping():
            return build_json_response({"status": "stopping"}, status=503)
        if dead_loops := list_dead_loops():
            # Without them nothing renews leases, writes usage or erases old conversations: only a restart helps.
            return build_json_response({"status": "failed", "dead_loops": list(dead_loops)}, status=503)
        info = await check_store()
        return build_json_response({"status": "ready", "store": info.backend, "schema_version": info.schema_version})

    return routes
