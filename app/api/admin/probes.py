"""The health probes: `/healthz` says that the process lives, `/readyz` that it can answer requests. `GET` does not pass
through FastAPI (`app/api/edge/asgi_front.py`); FastAPI's routes are for /openapi.json, `/docs` and other methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import orjson
from fastapi import APIRouter
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.edge.error_responses import build_error_response
from app.api.edge.headers import RequestIdMiddleware
from app.api.resource_schemas import ErrorBody
from app.errors import GatewayError
from app.store.contract.store import StoreInfo

NOT_READY_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": ErrorBody, "description": "The store is unavailable, or the process is about to stop."}
}


class HealthProbes:
    """Answers the probes of load balancers and orchestrators."""

    def __init__(
        self,
        check_store: Callable[[], Awaitable[StoreInfo]],
        *,
        version: str,
        is_stopping: Callable[[], bool] = lambda: False,
        list_dead_loops: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """
        Args:
            check_store: `Store.check`.
            version: the gateway's version, shown by `/healthz`.
            is_stopping: whether the process is about to stop.
            list_dead_loops: returns the names of background loops that have ended by mistake.
        """
        self._list_dead_loops = list_dead_loops
        self._is_stopping = is_stopping
        self._check_store = check_store
        self._liveness_body = {"status": "ok", "version": version}

    async def answer_liveness(self) -> Response:
        return _json_response(self._liveness_body)

    async def answer_readiness(self) -> Response:
        """Answers 200 if the store answers; 503 otherwise, and while the process is about to stop. Providers do not
        count: one that is away is away for every process, and one client's requests could make one seem so."""
        if self._is_stopping():
            return _json_response({"status": "stopping"}, status=503)
        if dead_loops := self._list_dead_loops():
            # Without them nothing renews leases, writes usage or erases old conversations: only a restart helps.
            return _json_response({"status": "failed", "dead_loops": list(dead_loops)}, status=503)
        try:
            info = await self._check_store()
        except GatewayError as error:
            return build_error_response(error)
        return _json_response({"status": "ready", "store": info.backend, "schema_version": info.schema_version})

    def build_routes(self, new_request_id: Callable[[], str]) -> dict[str, Route]:
        """Returns both routes by path, for `GET`."""
        request_id_middleware = [Middleware(RequestIdMiddleware, new_request_id=new_request_id)]

        async def healthz(request: Request) -> Response:
            return await self.answer_liveness()

        async def readyz(request: Request) -> Response:
            return await self.answer_readiness()

        routes = (
            Route("/healthz", healthz, middleware=request_id_middleware),
            Route("/readyz", readyz, middleware=request_id_middleware),
        )
        return {route.path: route for route in routes}


def build_health_routes(probes: HealthProbes) -> APIRouter:
    """Builds FastAPI's routes of both probes."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process is alive")
    async def healthz() -> Response:
        return await probes.answer_liveness()

    @routes.get("/readyz", summary="Store and schema are available", responses=NOT_READY_RESPONSES)
    async def readyz() -> Response:
        return await probes.answer_readiness()

    return routes


def _json_response(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
