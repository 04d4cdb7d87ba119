"""How a message looks when some of it was deleted or erased: its place, role and tool calls stay, its words go. Pure.

Calls keep their results and roles their order, so the rest of the log can still be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.context.view.message_edits import REASONING_FIELDS
from app.conversation.messages import LogMessage, Message
from app.conversations.items.items import DELETED, ITEM_FIELDS

DELETED_MARK: Final = "[deleted]"
ERASED_MARK: Final = "[erased]"
"""Stand in place of the words."""
CONTENT_META_KEYS: Final = ("alternatives", ITEM_FIELDS)
"""Facts about a message that repeat what it says."""
CALL_TYPES: Final = ("function_call", "custom_tool_call")
KEPT_FIELDS: Final = ("role", "tool_call_id", "tool_calls", "function_call")


def redact_item(
    entry: LogMessage, item: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *, erase: bool
) -> LogMessage:
    """A message without the words of one of its items. Its token count is not changed.

    Args:
        item: one of `items`.
        items: all that the message makes (`conversations.items.items`), deleted ones too.
        erase: for good; else the message as it was is kept in its `meta`.
    """
    mark = ERASED_MARK if erase else DELETED_MARK
    body = dict(entry.message.body)
    kind = str(item["type"])
    if not any(one["type"] == "message" for one in items):  # then no item's erasure would take the other fields along
        body = {name: body[name] for name in (*KEPT_FIELDS, "content", *REASONING_FIELDS) if name in body}
    if kind in CALL_TYPES:
        calls = [one["id"] for one in items if one["type"] in CALL_TYPES]
        body = redact_call(body, calls.index(item["id"]), mark)
        redacted_items = [item]
    elif kind == "reasoning":
        body = redact_reasoning(body, mark)
        redacted_items = [item]
    else:
        body = redact_message(body, mark)
        redacted_items = [one for one in items if one["type"] not in CALL_TYPES]
    return replace(
        entry,
        message=Message.from_body(body),
        meta=_build_redaction_meta(entry, [items.index(one) for one in redacted_items], erase=erase),
    )


def redact_message(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """A message that says only the mark. A function's name stays, a speaker's goes."""
    kept = {name: body[name] for name in KEPT_FIELDS if body.get(name) is not None}
    if body.get("role") == "function":
        kept["name"] = body.get("name")
    if any(body.get(name) for name in REASONING_FIELDS):
        kept["reasoning_content"] = mark
    return {**kept, "content": mark}


def redact_reasoning(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """A message whose reasoning is only the mark."""
    kept = {name: value for name, value in body.items() if name not in REASONING_FIELDS}
    return {**kept, "reasoning_content": mark}


def redact_call(body: Mapping[str, Any], index: int, mark: str) -> dict[str, Any]:
    """A message one of whose tool calls has no arguments any more; a custom tool's input is the mark."""
    if not isinstance(body.get("tool_calls"), list):
        function = body.get("function_call") or {}
        return {**body, "function_call": {"name": function.get("name"), "arguments": "{}"}}
    calls = list(body["tool_calls"])
    calls[index] = _strip_call(calls[index], mark)
    return {**body, "tool_calls": calls}


def _strip_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    bare = {name: call[name] for name in ("id", "type") if name in call}
    if isinstance(call.get("custom"), Mapping):
        return {**bare, "custom": {"name": call["custom"].get("name"), "input": mark}}
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return {**bare, "function": {"name": name, "arguments": "{}"}}


def _build_redaction_meta(entry: LogMessage, parts: Sequence[int], *, erase: bool) -> dict[str, Any]:
    """What is known of the message, `DELETED` being which of its items were deleted, whether any of them for good, and
    where none was, the message as it was."""
    meta = dict(entry.meta or {})
    before = meta.get(DELETED) or {}
    deleted: dict[str, Any] = {
        "parts": sorted({*before.get("parts", ()), *parts}),
        "erased": erase or bool(before.get("erased")),
    }
    if erase:
        meta = {name: value for name, value in meta.items() if name not in CONTENT_META_KEYS}
    else:
        deleted["body"] = before.get("body") or entry.message.raw.decode()
    return {**meta, DELETED: deleted}


def read_deleted_parts(entry: LogMessage) -> tuple[int, ...]:
    """The items of a message that were deleted, by their part."""
    return tuple(((entry.meta or {}).get(DELETED) or {}).get("parts", ()))
