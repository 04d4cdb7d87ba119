"""`GET /v1/models`: lists the models of all providers, with their context windows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.api.edge.auth import Authenticator, may_use_model
from app.api.edge.error_responses import speaks_messages
from app.api.resource_schemas import Described, Name, ObjectList, build_json_response, build_resource_router
from app.errors import ModelNotFound
from app.pipeline.turn.chat_request import Caller
from app.upstream.routing.model_catalogue import ModelCatalogue


class ModelObject(Described):
    """OpenAI's model object, with its context window under the four names that clients read."""

    id: str
    object: str
    created: int
    owned_by: str


def _describe_for_anthropic(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model as Anthropic describes it."""
    created = model.get("created")
    created_at = datetime.fromtimestamp(created if isinstance(created, int) else 0, UTC)
    described = {
        "type": "model",
        "id": model["id"],
        "display_name": model.get("display_name") or model["id"],
        "created_at": model.get("created_at") or created_at.isoformat().replace("+00:00", "Z"),
        "lifecycle": model.get("lifecycle") or "active",
    }
    window = model.get("context_window")
    return described if window is None else {**described, "max_input_tokens": window}


def build_model_routes(model_catalogue: ModelCatalogue, auth: Authenticator) -> APIRouter:
    """Builds OpenAI's two model endpoints. Models that the caller's key does not allow are left out."""
    routes = build_resource_router("/v1", "models")
    asks = Depends(auth.require_scope("chat"))

    @routes.get("/models", response_model=ObjectList[ModelObject])
    async def list_models(request: Request, caller: Caller = asks) -> Response:
        """List models over all providers, by `anthropic-version` in Anthropic's form."""
        models = await model_catalogue.list_models(caller.authorization)
        data = [one for one in models if may_use_model(caller, one["id"])]
        if speaks_messages(request.scope):
            ids = [one["id"] for one in data]
            page = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
            return build_json_response({"data": list(map(_describe_for_anthropic, data)), **page})
        return build_json_response({"object": "list", "data": data})

    @routes.get("/models/{model:path}", response_model=ModelObject)
    async def get_model(request: Request, model: Name, caller: Caller = asks) -> Response:
        """One model."""
        model_object = await model_catalogue.find_model(model, caller.authorization)
        if model_object is None or not may_use_model(caller, model):
            # 404 and not 403 for a model that the key does not allow: the list does not show it either.
            raise ModelNotFound(f"The model {model!r} does not exist.", param="model")
        is_described = speaks_messages(request.scope)
        return build_json_response(_describe_for_anthropic(model_object) if is_described else model_object)

    return routes
