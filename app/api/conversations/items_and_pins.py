"""`/v1/conversations/{id}/items`: the items of a conversation in OpenAI's form, their pins, and user text."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from app.api.conversations.conversations import BUSY_RESPONSE, ConversationObject, build_conversation_response
from app.api.conversations.item_schemas import ItemObject, Items
from app.api.edge.auth import Authenticator
from app.api.edge.request_reader import read_headers
from app.api.resource_schemas import (
    MAX_PAGE_SIZE,
    After,
    Deleted,
    Described,
    Limit,
    Order,
    Page,
    build_json_response,
    build_page_response,
    build_resource_router,
)
from app.conversations.erase.item_removal import ItemRemover
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_reader import ItemQuery, ItemReader
from app.conversations.items.item_writer import ItemWriter
from app.conversations.items.pins import PinStore
from app.conversations.items.user_text import UserTextRecords
from app.pipeline.turn.chat_request import Caller


class NewItems(BaseModel):
    """Items to add to a conversation, all or none."""

    items: Items


def build_item_routes(
    records: ConversationRecords,
    item_writer: ItemWriter,
    item_reader: ItemReader,
    item_remover: ItemRemover,
    auth: Authenticator,
) -> APIRouter:
    """Builds the endpoints that add, list, read and delete items."""
    routes = build_resource_router("/v1/conversations/{conversation_id}/items", "conversations")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.post("", response_model=Page[ItemObject], responses=BUSY_RESPONSE)
    async def create_items(request: Request, conversation_id: str, new: NewItems, caller: Caller = manages) -> Response:
        """Add items to a conversation."""
        conversation, items = await item_writer.add_items(
            caller, conversation_id, new.items, is_retry=_is_sdk_retry(request)
        )
        return build_page_response((items, False), conversation_id=conversation.id)

    @routes.get("", response_model=Page[ItemObject])
    async def list_items(
        conversation_id: str, limit: Limit = 20, after: After = None, order: Order = "desc", caller: Caller = reads
    ) -> Response:
        """List the items of a conversation."""
        conversation = await records.find_conversation(caller, conversation_id)
        query = ItemQuery(limit=limit, descending=order == "desc", after=after)
        return build_page_response(await item_reader.list_items(conversation, query), conversation_id=conversation.id)

    @routes.get("/{item_id}", response_model=ItemObject)
    async def get_item(conversation_id: str, item_id: str, caller: Caller = reads) -> Response:
        """An item."""
        conversation = await records.find_conversation(caller, conversation_id)
        return build_json_response(await item_reader.find_item(conversation, item_id), conversation_id=conversation.id)

    @routes.delete("/{item_id}", response_model=ConversationObject, responses=BUSY_RESPONSE)
    async def delete_item(
        conversation_id: str,
        item_id: str,
        erase: Annotated[bool, Query(description="Remove the text for good, in every branch that shares it.")] = False,
        caller: Caller = manages,
    ) -> Response:
        """Delete or erase an item; returns the changed conversation."""
        conversation = await records.find_conversation(caller, conversation_id)
        changed = await item_remover.remove_item(caller, conversation, item_id, erase=erase)
        return build_conversation_response(await records.build_conversation_object(changed))

    return routes


def _is_sdk_retry(request: Request) -> bool:
    """Returns whether the client's SDK says that it sends this request again."""
    return read_headers(request.scope).get("x-stainless-retry-count", "0") not in ("", "0")


class PinnedItem(ItemObject):
    """An item, and whether it is pinned."""

    pinned: bool


class PinnedMessage(Described):
    id: str
    seq: int
    role: str
    text: str


class PinObject(Described):
    """Messages that are pinned together, `[from_seq, to_seq)` of the log: one message, or tool calls with their
    results."""

    id: str
    object: Literal["conversation.pin"]
    from_seq: int
    to_seq: int
    tokens: int
    messages: list[PinnedMessage]


def build_pin_routes(pins: PinStore, auth: Authenticator) -> APIRouter:
    """Builds the endpoints that list, set and remove pins. Tool calls are pinned together with their results."""
    routes = build_resource_router("/v1/conversations/{conversation_id}", "context")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get("/pins", response_model=Page[PinObject])
    async def list_pins(
        conversation_id: str, limit: Limit = MAX_PAGE_SIZE, after: After = None, caller: Caller = reads
    ) -> Response:
        """List pins in the order of the log."""
        return build_page_response(await pins.list_pins(caller, conversation_id, limit, after))

    @routes.post("/items/{item_id}/pin", response_model=PinnedItem, responses=BUSY_RESPONSE)
    async def pin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        """Pin an item."""
        return build_json_response(await pins.pin_item(caller, conversation_id, item_id))

    @routes.delete("/items/{item_id}/pin", response_model=PinnedItem, responses=BUSY_RESPONSE)
    async def unpin_item(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        """Unpin an item."""
        return build_json_response(await pins.unpin_item(caller, conversation_id, item_id))

    return routes


class UserTextObject(Described):
    """A message of the user that views no longer show, and what is kept of it word for word. Its `id` is that of its
    item."""

    id: str
    object: Literal["conversation.user_text"]
    seq: int
    verbatim: bool
    tokens: int
    text: str


def build_user_text_routes(user_text: UserTextRecords, auth: Authenticator) -> APIRouter:
    """Builds the endpoints that list user text and drop messages from it."""
    routes = build_resource_router("/v1/conversations/{conversation_id}/user_text", "context")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get("", response_model=Page[UserTextObject])
    async def list_user_text(
        conversation_id: str, limit: Limit = MAX_PAGE_SIZE, after: After = None, caller: Caller = reads
    ) -> Response:
        """List what the newest view keeps of the user's text, in the order of the log."""
        return build_page_response(await user_text.list_user_text(caller, conversation_id, limit, after))

    @routes.delete("/{item_id}", response_model=Deleted, responses=BUSY_RESPONSE)
    async def drop_user_text(conversation_id: str, item_id: str, caller: Caller = manages) -> Response:
        """Drop a message from the kept text; the log stays as it is."""
        return build_json_response(await user_text.drop_message(caller, conversation_id, item_id))

    return routes
