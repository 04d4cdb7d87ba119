"""Parses items that a client adds to a conversation into messages: all items or none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, write_large_integers_as_text
from app.conversations.items.item_building import parse_item_id
from app.dialects.items.input_items import USUAL_TYPES, find_item_groups, join_item_groups
from app.dialects.items.message import ResponsesMessage
from app.errors import InvalidRequest

MAX_ITEMS: Final = 20
"""OpenAI's limit for one request."""
LISTED_FIELDS: Final = ("id", "client_id", "created_at", "pinned")
"""Fields that an item has in the gateway's lists: no provider knows them, but for a client's own id."""


def parse_items(items: Sequence[object], *, open_calls: Collection[str] | None) -> list[ResponsesMessage]:
    """Parses items into messages.

    Args:
        open_calls: ids of the tool calls at the end of the log, whose results may come first; None: any result may.

    Raises:
        InvalidRequest: an item is invalid, or has a type that cannot be added; `param` names it, such as
            `items[3].type`.
    """
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(
            f"At most {MAX_ITEMS} items may be added at a time, not {len(items)}.",
            code="array_above_max_length",
            param="items",
        )
    raw_items = [_encode_item(item, f"items[{index}]") for index, item in enumerate(items)]
    groups = find_item_groups(raw_items, may_begin_with_result=True, open_calls=open_calls, field="items")
    return [ResponsesMessage(raw) for raw in join_item_groups(raw_items, groups)]


def _encode_item(item: object, location: str) -> bytes:
    """Returns the JSON text of an item without the gateway's own fields."""
    if is_too_deep(item):
        raise InvalidRequest(f"{location} {TOO_DEEP_MESSAGE}", code="invalid_value", param=location)
    if not isinstance(item, Mapping):
        return orjson.dumps(write_large_integers_as_text(item))
    kind = item.get("type", "message")
    if isinstance(kind, str) and kind not in USUAL_TYPES:
        raise InvalidRequest(
            f"{location}: items of type {kind!r} cannot be added; these can be: {', '.join(USUAL_TYPES)}.",
            code="invalid_value",
            param=f"{location}.type",
        )
    own_fields: dict[str, Any] = {name: value for name, value in item.items() if name not in LISTED_FIELDS}
    client_id = item.get("client_id") or item.get("id")
    if isinstance(client_id, str) and parse_item_id(client_id) is None:
        own_fields["id"] = client_id
    return orjson.dumps(write_large_integers_as_text(own_fields))
