"""`GET /v1/models`: lists the models of all providers, with their context windows."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.edge.auth import Authenticator, may_use_model
from app.api.resource_schemas import Described, Name, ObjectList, build_json_response, build_resource_router
from app.errors import ModelNotFound
from app.pipeline.chat_request import Caller
from app.upstream.routing.model_catalogue import ModelCatalogue


class ModelObject(Described):
    """OpenAI's model object, with its context window under the four names that clients read."""

    id: str
    object: str
    created: int
    owned_by: str


def build_model_routes(model_catalogue: ModelCatalogue, auth: Authenticator) -> APIRouter:
    """Builds OpenAI's two model endpoints. Models that the caller's key does not allow are left out."""
    routes = build_resource_router("/v1", "models")
    asks = Depends(auth.require_scope("chat"))

    @routes.get("/models", response_model=ObjectList[ModelObject])
    async def list_models(caller: Caller = asks) -> Response:
        """List models over all providers."""
        models = await model_catalogue.list_models(caller.authorization)
        return build_json_response(
            {"object": "list", "data": [one for one in models if may_use_model(caller, one["id"])]}
        )

    @routes.get("/models/{model:path}", response_model=ModelObject)
    async def get_model(model: Name, caller: Caller = asks) -> Response:
        """One model."""
        model_object = await model_catalogue.find_model(model, caller.authorization)
        if model_object is None or not may_use_model(caller, model):
            # 404 and not 403 for a model that the key does not allow: the list does not show it either.
            raise ModelNotFound(f"The model {model!r} does not exist.", param="model")
        return build_json_response(model_object)

    return routes
