"""`/v1/admin/settings`: the settings as they are in force. The caller needs the scope `admin`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import Described, ObjectList, build_json_response, build_resource_router
from app.pipeline.turn.chat_request import Caller


class SettingObject(Described):
    """A setting. `value` of a secret is `…` with its last two characters at most; null: it is not set."""

    path: str
    value: Any
    source: Literal["default", "file", "environment", "command line"]
    place: str | None
    secret: bool


def build_settings_routes(list_settings: Callable[[], list[dict[str, Any]]], auth: Authenticator) -> APIRouter:
    """Builds the route `GET /v1/admin/settings`.

    Args:
        list_settings: returns the fields of each setting; secrets are hidden in them already.
    """
    routes = build_resource_router("/v1/admin", "settings")
    admin = Depends(auth.require_scope("admin"))

    @routes.get("/settings", response_model=ObjectList[SettingObject])
    async def list_settings_in_force(caller: Caller = admin) -> Response:
        """The settings in force."""
        return build_json_response({"object": "list", "data": list_settings()})

    return routes
