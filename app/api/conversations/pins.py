"""`…/items/{item_id}/pin`: shown word for word until it is unpinned; `…/pins`: what is."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.conversations.conversations import BUSY
from app.api.conversations.item_schemas import ItemObject
from app.api.edge.auth import Auth
from app.api.resource_schemas import MAX_PAGE, REFUSALS, After, Described, Limit, Page, json_response, page_of
from app.conversations.items.pins import Pins
from app.pipeline.chat_request import Caller


class PinnedItem(ItemObject):
    """An item, and whether it is pinned."""

    pinned: bool


class PinnedMessage(Described):
    id: str
    seq: int
    role: str
    text: str


class PinObject(Described):
    """What is pinned together: a message, or a call with its results; `[from_seq, to_seq)` of the log."""

    id: str
    object: Literal["conversation.pin"]
    from_seq: int
    to_seq: int
    tokens: int
    messages: list[PinnedMessage]


class PinPage(Page):
    data: list[PinObject]


def pin_routes(pins: Pins, auth: Auth) -> APIRouter:
    """Pinning and unpinning, and what is pinned. A call and its results, or one message, are pinned together."""
    routes = APIRouter(prefix="/v1/conversations/{conversation_id}", tags=["context"], responses=REFUSALS)
    reads, manages = Depends(auth.requires("read")), Depends(auth.requires("manage"))
    pinned: dict[int | str, dict[str, Any]] = {200: {"model": PinnedItem}, **BUSY}

    @routes.get("/pins", summary="What is pinned, in the order of the log", responses={200: {"model": PinPage}})
    async def list_pins(
        conversation_id: str, limit: Limit = MAX_PAGE, after: After = None, caller: Caller = reads
    ) -> Response:
        found, has_more = await pins.page(caller, conversation_id, limit, after)
        return json_response(page_of(found, has_more=has_more))

    @routes.post("/items/{item_id}/pin", summary="Show an item word for word from now on", responses=pinned)
    async def pin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        return json_response(await pins.pin(caller, conversation_id, item_id))

    @routes.delete("/items/{item_id}/pin", summary="Let an item be summarized again", responses=pinned)
    async def unpin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        return json_response(await pins.unpin(caller, conversation_id, item_id))

    return routes
