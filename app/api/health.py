"""`/healthz` says that the process lives, `/readyz` that it can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from app.api.errors import error_response
from app.api.resources import ErrorBody
from app.errors import StoreUnavailable, UpstreamUnavailable
from app.store.base import Store

NOT_READY: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": ErrorBody, "description": "The store is away, or every upstream has failed repeatedly."}
}


def health_routes(store: Store, *, version: str, has_upstream: Callable[[], bool]) -> APIRouter:
    """The two probes."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process is alive")
    async def healthz() -> Response:
        return _json({"status": "ok", "version": version})

    @routes.get("/readyz", summary="Store, schema and upstream are there", responses=NOT_READY)
    async def readyz() -> Response:
        try:
            info = await store.check()
        except StoreUnavailable as error:
            return error_response(error)
        if not has_upstream():
            return error_response(UpstreamUnavailable("Every upstream has failed repeatedly.", status=503))
        return _json({"status": "ready", "store": info.backend, "schema_version": info.schema_version})

    return routes


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
