"""Redacts messages: place, role and tool calls stay, the text is replaced by a mark. Pure.

Calls keep their results and roles keep their order, because providers refuse a log without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.conversation_types import LogMessage
from app.conversations.items.item_building import CALL_TYPES, DELETED, ITEM_FIELDS
from app.dialects.chat.redaction import drop_other_fields, redact_call, redact_reasoning, redact_text

DELETED_MARK: Final = "[deleted]"
ERASED_MARK: Final = "[erased]"
"""The marks that replace a text that was deleted, or erased."""
CONTENT_META_KEYS: Final = ("alternatives", ITEM_FIELDS)
"""Keys of `LogMessage.meta` that repeat content of the message; erasure removes them."""


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
    # Without a `message` item no erasure would ever remove the message's other fields, so they are dropped at once.
    if not any(one["type"] == "message" for one in items):
        message = drop_other_fields(message)
    if kind in CALL_TYPES:
        calls = [one["id"] for one in items if one["type"] in CALL_TYPES]
        message = redact_call(message, calls.index(item["id"]), mark)
        redacted_items = [item]
    elif kind == "reasoning":
        message = redact_reasoning(message, mark)
        redacted_items = [item]
    else:
        message = redact_text(message, mark)
        redacted_items = [one for one in items if one["type"] not in CALL_TYPES]
    return replace(
        entry,
        message=message,
        meta=_build_redaction_meta(entry, [items.index(one) for one in redacted_items], erase=erase),
    )


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
