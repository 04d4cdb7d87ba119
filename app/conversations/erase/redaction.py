"""Redacts messages: place, role and tool calls stay, the text is replaced by a mark. Pure.

Calls keep their results and roles keep their order, because providers refuse a log without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.conversations.items.item_building import CALL_TYPES, DELETED
from app.dialects.body.message import ChatMessage
from app.dialects.items.item_redaction import redact_items
from app.dialects.items.message import ResponsesMessage
from app.dialects.redaction import drop_other_fields, redact_call, redact_reasoning, redact_text

DELETED_MARK: Final = "[deleted]"
ERASED_MARK: Final = "[erased]"
"""The marks that replace a text that was deleted, or erased."""
CONTENT_META_KEYS: Final = ("alternatives", "item")
"""Keys of `LogMessage.meta` that repeat content of the message; erasure removes them. Items that were added by version
0.1.0 have `item`."""


def redact_item(
    entry: LogMessage, item: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *, erase: bool
) -> LogMessage:
    """Returns a message without the text of one of its items. The message's token count is not updated.

    Args:
        item: one of `items`.
        items: all items of the message (`conversations.items.item_building`), with deleted ones.
        erase: drop the original message; otherwise it is kept in `meta`.
    """
    mark = ERASED_MARK if erase else DELETED_MARK
    message = entry.message
    kind = str(item["type"])
    redacted_items = [item]
    if kind not in CALL_TYPES and kind != "reasoning":
        # Reasoning often repeats what the model then says or looks up, so it goes with any such item.
        redacted_items = [one for one in items if one is item or one["type"] == "reasoning"]
    parts = [items.index(one) for one in redacted_items]
    if isinstance(message, ResponsesMessage):
        redacted_message: Item = redact_items(message, parts, mark)
    else:
        redacted_message = _redact_chat_message(message, item, items, mark)
    return replace(
        entry,
        message=redacted_message,
        meta=_build_redaction_meta(entry, parts, erase=erase),
    )


def _redact_chat_message(
    message: Item, item: Mapping[str, Any], items: Sequence[Mapping[str, Any]], mark: str
) -> ChatMessage:
    # Without a `message` item no erasure would ever remove the message's other fields, so they are dropped at once.
    if not any(one["type"] == "message" for one in items):
        message = drop_other_fields(message)
    kind = item["type"]
    if kind in CALL_TYPES:
        calls = [one["id"] for one in items if one["type"] in CALL_TYPES]
        return redact_call(message, calls.index(item["id"]), mark)
    return redact_reasoning(message, mark) if kind == "reasoning" else redact_text(message, mark)


def _build_redaction_meta(entry: LogMessage, parts: Sequence[int], *, erase: bool) -> dict[str, Any]:
    """Builds the message's `meta`. `DELETED` holds the parts of deleted items, whether one of them was erased, and, if
    none was, the original body."""
    meta = dict(entry.meta or {})
    earlier_deletion = meta.get(DELETED) or {}
    deleted: dict[str, Any] = {
        "parts": sorted({*earlier_deletion.get("parts", ()), *parts}),
        "erased": erase or bool(earlier_deletion.get("erased")),
    }
    if erase:
        meta = {name: value for name, value in meta.items() if name not in CONTENT_META_KEYS}
    else:
        deleted["body"] = earlier_deletion.get("body") or entry.message.raw.decode()
    return {**meta, DELETED: deleted}


def read_deleted_parts(entry: LogMessage) -> tuple[int, ...]:
    """Returns the part numbers of a message's deleted items."""
    return tuple(((entry.meta or {}).get(DELETED) or {}).get("parts", ()))
