"""`GET /v1/models`: what can be asked for, over all providers, with context windows."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.edge.auth import Auth, may_ask_for
from app.api.resource_schemas import REFUSALS, Described, json_response
from app.errors import ModelNotFound
from app.pipeline.chat_request import Caller
from app.upstream.routing.model_list import Catalogue


class ModelObject(Described):
    """OpenAI's object; `context_window` where it is known."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(Described):
    object: str
    data: list[ModelObject]


def model_routes(catalogue: Catalogue, auth: Auth) -> APIRouter:
    """OpenAI's two model endpoints; `context_window` is ours."""
    routes = APIRouter(prefix="/v1", tags=["models"], responses=REFUSALS)
    asks = Depends(auth.requires("chat"))

    @routes.get("/models", summary="List models over all providers", responses={200: {"model": ModelList}})
    async def list_models(caller: Caller = asks) -> Response:
        models = await catalogue.models(caller.authorization)
        return json_response({"object": "list", "data": [one for one in models if may_ask_for(caller, one["id"])]})

    @routes.get("/models/{model:path}", summary="One model", responses={200: {"model": ModelObject}})
    async def get_model(model: str, caller: Caller = asks) -> Response:
        found = await catalogue.model(model, caller.authorization)
        if found is None or not may_ask_for(caller, model):
            raise ModelNotFound(f"The model {model!r} does not exist.", param="model")
        return json_response(found)

    return routes
