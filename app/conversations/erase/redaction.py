"""Redacts messages: place, role and tool calls stay, the text is replaced by a mark. Pure.

Calls keep their results and roles keep their order, because providers refuse a log without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.context.view.message_edits import REASONING_FIELDS
from app.conversation.conversation_types import LogMessage, Message
from app.conversations.items.item_building import DELETED, ITEM_FIELDS

DELETED_MARK: Final = "[deleted]"
ERASED_MARK: Final = "[erased]"
"""The marks that replace a text that was deleted, or erased."""
CONTENT_META_KEYS: Final = ("alternatives", ITEM_FIELDS)
"""Keys of `LogMessage.meta` that repeat content of the message; erasure removes them."""
CALL_TYPES: Final = ("function_call", "custom_tool_call")
KEPT_FIELDS: Final = ("role", "tool_call_id", "tool_calls", "function_call")


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
    body = dict(entry.message.body)
    kind = str(item["type"])
    # Without a `message` item no erasure would ever remove the body's other fields, so they are dropped at once.
    if not any(one["type"] == "message" for one in items):
        body = {name: body[name] for name in (*KEPT_FIELDS, "content", *REASONING_FIELDS) if name in body}
    if kind in CALL_TYPES:
        calls = [one["id"] for one in items if one["type"] in CALL_TYPES]
        body = redact_tool_call(body, calls.index(item["id"]), mark)
        redacted_items = [item]
    elif kind == "reasoning":
        body = redact_reasoning(body, mark)
        redacted_items = [item]
    else:
        body = redact_message_body(body, mark)
        redacted_items = [one for one in items if one["type"] not in CALL_TYPES]
    return replace(
        entry,
        message=Message.from_body(body),
        meta=_build_redaction_meta(entry, [items.index(one) for one in redacted_items], erase=erase),
    )


def redact_message_body(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Returns a message body whose only text is the mark. A function's name stays; a speaker's name, which may identify
    a person, is dropped."""
    kept_fields = {name: body[name] for name in KEPT_FIELDS if body.get(name) is not None}
    if body.get("role") == "function":
        kept_fields["name"] = body.get("name")
    if any(body.get(name) for name in REASONING_FIELDS):
        kept_fields["reasoning_content"] = mark
    return {**kept_fields, "content": mark}


def redact_reasoning(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Returns a message body with the mark as its reasoning."""
    other_fields = {name: value for name, value in body.items() if name not in REASONING_FIELDS}
    return {**other_fields, "reasoning_content": mark}


def redact_tool_call(body: Mapping[str, Any], index: int, mark: str) -> dict[str, Any]:
    """Returns a message body in which one tool call has no arguments; a custom tool's input becomes the mark."""
    if not isinstance(body.get("tool_calls"), list):
        function = body.get("function_call") or {}
        return {**body, "function_call": {"name": function.get("name"), "arguments": "{}"}}
    calls = list(body["tool_calls"])
    calls[index] = _strip_tool_call(calls[index], mark)
    return {**body, "tool_calls": calls}


def _strip_tool_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    stripped_call = {name: call[name] for name in ("id", "type") if name in call}
    if isinstance(call.get("custom"), Mapping):
        return {**stripped_call, "custom": {"name": call["custom"].get("name"), "input": mark}}
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return {**stripped_call, "function": {"name": name, "arguments": "{}"}}


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
