"""`/healthz` says that the process lives, `/readyz` that it can answer. Both need no framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.edge.error_responses import error_response
from app.api.edge.request_ids import RequestIds
from app.errors import GatewayError, UpstreamUnavailable
from app.store.contract import Store


class Probes:
    """What machines ask every few seconds."""

    def __init__(
        self,
        store: Store,
        *,
        version: str,
        has_upstream: Callable[[], bool],
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            is_leaving: whether the process is about to stop.
        """
        self._is_leaving = is_leaving
        self._store = store
        self._has_upstream = has_upstream
        self._alive = {"status": "ok", "version": version}

    async def healthz(self) -> Response:
        return _json(self._alive)

    async def readyz(self) -> Response:
        """Ready are a store that answers and, unless each has failed repeatedly, an upstream. Whoever is about to stop
        is not."""
        if self._is_leaving():
            return _json({"status": "stopping"}, status=503)
        try:
            info = await self._store.check()
        except GatewayError as error:
            return error_response(error)
        if not self._has_upstream():
            return error_response(UpstreamUnavailable("Every upstream has failed repeatedly.", status=503))
        return _json({"status": "ready", "store": info.backend, "schema_version": info.schema_version})

    def routes(self, new_request_id: Callable[[], str]) -> dict[str, Route]:
        """Both by path, for `GET`."""
        named = [Middleware(RequestIds, new_request_id=new_request_id)]

        async def healthz(request: Request) -> Response:
            return await self.healthz()

        async def readyz(request: Request) -> Response:
            return await self.readyz()

        routes = (Route("/healthz", healthz, middleware=named), Route("/readyz", readyz, middleware=named))
        return {route.path: route for route in routes}


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
