"""The items of a message as OpenAI's lists of items show them. Pure."""

from __future__ import annotations

from typing import Any

from app.dialects.items.item_parts import build_item_text_part
from app.dialects.items.message import ResponsesMessage

ItemObject = dict[str, Any]


def build_input_items(message: ResponsesMessage) -> list[ItemObject]:
    """Returns the items of a message as OpenAI lists them: with `type` and `status`, and content in parts."""
    return [complete_item(item) for item in message.items if isinstance(item, dict)]


def complete_item(item: ItemObject) -> ItemObject:
    """Returns an item; a message with `type`, `status` and content in parts."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        content = [build_item_text_part(content, is_answer=item.get("role") == "assistant")]
    return {**item, "type": "message", "content": content, "status": item.get("status", "completed")}


def hide_encrypted_reasoning(item: ItemObject) -> ItemObject:
    """Returns an item without encrypted reasoning."""
    if item.get("type") != "reasoning" or "encrypted_content" not in item:
        return item
    return {name: value for name, value in item.items() if name != "encrypted_content"}
