"""Removes the text of Responses items and leaves their kinds and their calls. Pure.

The number of items stays the same, because the ids of the conversations API count them. Calls keep their outputs and
the types of both, because providers refuse a conversation without them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from app.dialects.items.item_edits import EMPTY_IMAGE, replace_output
from app.dialects.items.item_kinds import OUTPUT_TYPES, SPOKEN_ROLES, is_client_call, read_type
from app.dialects.items.message import ResponsesMessage

PAIRING_FIELDS: Final = ("type", "id", "call_id", "approval_request_id", "approve", "execution", "status")
"""Fields that stay: they hold no text, or pair a call with its output."""
KEPT_NAMES: Final = ("type", "name", "server_label", *PAIRING_FIELDS)
"""Fields of a call, at any depth, whose strings stay: a type or a tool's name."""


def redact_items(message: ResponsesMessage, places: Collection[int], mark: str) -> ResponsesMessage:
    """Returns a message in which some items have no text but a mark.

    Args:
        places: the indexes of these items in the message.
    """
    return ResponsesMessage.from_items(
        [_redact_item(item, mark) if place in places else item for place, item in enumerate(message.items)]
    )


def _redact_item(item: dict[str, Any] | str, mark: str) -> dict[str, Any] | str:
    if isinstance(item, str):
        return mark
    kind = read_type(item)
    if kind == "reasoning":
        return {"type": kind, "summary": [], "content": [{"type": "reasoning_text", "text": mark}]}
    named: dict[str, Any] = {name: item[name] for name in ("type", "call_id", "name", "namespace") if name in item}
    if kind == "function_call":
        return {**named, "arguments": "{}"}
    if kind == "custom_tool_call":
        return {**named, "input": mark}
    if is_client_call(item):
        return {name: _redact_field(name, value, mark) for name, value in item.items()}
    if kind in OUTPUT_TYPES:
        kept: dict[str, Any] = {name: item[name] for name in PAIRING_FIELDS if name in item}
        if "reason" in item:
            kept["reason"] = mark
        return replace_output(kept, mark)
    role = item.get("role")
    return {"type": "message", "role": role if role in SPOKEN_ROLES else "assistant", "content": mark}


def _redact_field(name: str, value: object, mark: str) -> object:
    """Returns a field of a call without its text. The call keeps its shape, which providers check."""
    if isinstance(value, str):
        if name in KEPT_NAMES:
            return value
        return EMPTY_IMAGE if name == "image_url" else "{}" if name == "arguments" else mark
    if isinstance(value, Mapping):
        return {key: _redact_field(key, inner, mark) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redact_field("", inner, mark) for inner in value]
    return value
