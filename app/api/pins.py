"""`…/items/{item_id}/pin`: shown word for word until it is unpinned."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.auth import Auth
from app.api.conversations import BUSY
from app.api.item_schemas import ItemObject
from app.api.resources import REFUSALS, json_response
from app.archive.pins import Pins
from app.exchange.request import Caller


class PinnedItem(ItemObject):
    """An item, and whether it is pinned."""

    pinned: bool


def pin_routes(pins: Pins, auth: Auth) -> APIRouter:
    """Pinning and unpinning. A call and its results, or one message, are pinned together."""
    routes = APIRouter(
        prefix="/v1/conversations/{conversation_id}/items/{item_id}",
        tags=["context"],
        responses={200: {"model": PinnedItem}, **REFUSALS, **BUSY},
    )
    manages = Depends(auth.requires("manage"))

    @routes.post("/pin", summary="Show an item word for word from now on")
    async def pin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        return json_response(await pins.pin(caller, conversation_id, item_id))

    @routes.delete("/pin", summary="Let an item be summarized again")
    async def unpin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        return json_response(await pins.unpin(caller, conversation_id, item_id))

    return routes
