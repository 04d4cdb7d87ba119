"""`GET /v1/models`: what can be asked for, over all providers, with context windows."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.auth import Auth, may_ask_for
from app.errors import ModelNotFound
from app.upstream.catalogue import Catalogue


def model_routes(catalogue: Catalogue, auth: Auth) -> APIRouter:
    """OpenAI's two model endpoints; `context_window` is ours."""
    routes = APIRouter(prefix="/v1", tags=["models"])

    @routes.get("/models", summary="List models over all providers")
    async def list_models(request: Request) -> Response:
        caller = await auth.caller(dict(request.headers), "chat")
        models = await catalogue.models(caller.authorization)
        return _json({"object": "list", "data": [one for one in models if may_ask_for(caller, one["id"])]})

    @routes.get("/models/{model:path}", summary="One model")
    async def get_model(request: Request, model: str) -> Response:
        caller = await auth.caller(dict(request.headers), "chat")
        found = await catalogue.model(model, caller.authorization)
        if found is None or not may_ask_for(caller, model):
            raise ModelNotFound(f"The model {model!r} does not exist.", param="model")
        return _json(found)

    return routes


def _json(body: Any) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
