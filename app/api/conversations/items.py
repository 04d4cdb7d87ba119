"""`/v1/conversations/{id}/items`: the items of a conversation, with OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from app.api.conversations.conversations import BUSY, ConversationObject, conversation_response
from app.api.conversations.item_schemas import ItemObject, ItemPage, Items
from app.api.edge.auth import Auth
from app.api.edge.request_body import headers_of
from app.api.resource_schemas import REFUSALS, After, JsonRoute, Limit, Order, json_response, page_of
from app.conversations.erase.erasure import Erasing
from app.conversations.history.conversations import Records
from app.conversations.items.item_list import Listing, Wanted
from app.conversations.items.item_writer import Adding
from app.pipeline.chat_request import Caller

Include = Annotated[
    list[str],
    Query(
        default_factory=list,
        alias="include[]",
        description="Of OpenAI's own tools. All that is kept is always included.",
    ),
]


class NewItems(BaseModel):
    """Items to add to a conversation, all or none."""

    items: Items


def item_routes(records: Records, adding: Adding, listing: Listing, erasing: Erasing, auth: Auth) -> APIRouter:
    """Adding, listing, reading and deleting items."""
    routes = APIRouter(
        prefix="/v1/conversations/{conversation_id}/items",
        tags=["conversations"],
        responses=REFUSALS,
        route_class=JsonRoute,
    )
    reads, manages = Depends(auth.requires("read")), Depends(auth.requires("manage"))

    @routes.post("", summary="Add items to a conversation", responses={200: {"model": ItemPage}, **BUSY})
    async def create_items(
        request: Request,
        conversation_id: str,
        new: NewItems,
        include: Include,
        caller: Caller = manages,
    ) -> Response:
        conversation, items = await adding.add(caller, conversation_id, new.items, is_retry=_is_retry(request))
        return json_response(page_of(items, has_more=False), conversation_id=conversation.id)

    @routes.get("", summary="List the items of a conversation", responses={200: {"model": ItemPage}})
    async def list_items(
        conversation_id: str,
        include: Include,
        limit: Limit = 20,
        after: After = None,
        order: Order = "desc",
        caller: Caller = reads,
    ) -> Response:
        conversation = await records.of(caller, conversation_id)
        wanted = Wanted(limit=limit, descending=order == "desc", after=after)
        items, has_more = await listing.page(conversation, wanted)
        return json_response(page_of(items, has_more=has_more), conversation_id=conversation.id)

    @routes.get("/{item_id}", summary="An item", responses={200: {"model": ItemObject}})
    async def get_item(
        conversation_id: str,
        item_id: str,
        include: Include,
        caller: Caller = reads,
    ) -> Response:
        conversation = await records.of(caller, conversation_id)
        return json_response(await listing.one(conversation, item_id), conversation_id=conversation.id)

    @routes.delete(
        "/{item_id}",
        summary="Delete or erase an item; the conversation as it then is",
        responses={200: {"model": ConversationObject}, **BUSY},
    )
    async def delete_item(
        conversation_id: str,
        item_id: str,
        erase: Annotated[bool, Query(description="Overwrite it for good, wherever it is shared.")] = False,
        caller: Caller = manages,
    ) -> Response:
        conversation = await records.of(caller, conversation_id)
        changed = await erasing.remove(caller, conversation, item_id, erase=erase)
        return conversation_response(await records.told(changed))

    return routes


def _is_retry(request: Request) -> bool:
    """Whether the client's SDK says that this is not its first attempt."""
    return headers_of(request.scope).get("x-stainless-retry-count", "0") not in ("", "0")
