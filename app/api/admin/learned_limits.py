"""`/v1/admin/learned-limits`: lists and clears what refusals have taught of windows. The caller needs the scope
`admin`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import Described, ObjectList, build_json_response, build_resource_router
from app.pipeline.call.window_learning import WindowLearner
from app.pipeline.turn.chat_request import Caller
from app.upstream.routing.learned_limits import LearnedLimit


class LearnedLimitObject(Described):
    """A size above which a deployment has refused prompts. `id` is `provider/model`. `stated`: the provider named the
    number; otherwise it was estimated from what was refused. `confirmed`: larger prompts have passed, too: the provider
    has hosts of different windows. Where `context_window` is configured, the limit changes no window."""

    id: str
    object: str
    tokens: int
    stated: bool
    confirmed: bool
    learned_at: int
    expires_at: int


def build_learned_limit_routes(window_learner: WindowLearner, auth: Authenticator) -> APIRouter:
    """Builds the endpoints for learned limits."""
    routes = build_resource_router("/v1/admin", "settings")
    admin = Depends(auth.require_scope("admin"))

    @routes.get("/learned-limits", response_model=ObjectList[LearnedLimitObject])
    async def list_learned_limits(caller: Caller = admin) -> Response:
        """Limits learned from refusals."""
        limits = await window_learner.list_limits()
        data = [build_learned_limit_object(key, limit) for key, limit in limits.items()]
        return build_json_response({"object": "list", "data": data})

    @routes.delete("/learned-limits/{limit_id:path}", response_model=LearnedLimitObject)
    async def clear_learned_limit(limit_id: str, caller: Caller = admin) -> Response:
        """Clear a learned limit."""
        return build_json_response(build_learned_limit_object(limit_id, await window_learner.clear_limit(limit_id)))

    return routes


def build_learned_limit_object(limit_id: str, limit: LearnedLimit) -> dict[str, Any]:
    """Builds the JSON object of a limit."""
    return {
        "id": limit_id,
        "object": "learned_limit",
        "tokens": limit.tokens,
        "stated": limit.is_stated,
        "confirmed": limit.is_confirmed,
        "learned_at": int(limit.learned_at),
        "expires_at": int(limit.expires_at()),
    }
