"""Removes the text of a chat message and leaves its role and its calls. Pure.

Calls keep their results and roles keep their order, because providers refuse a conversation without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.conversation.item import Item
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.body.message_fields import REASONING_FIELDS

KEPT_FIELDS: Final = ("role", "tool_call_id", "tool_calls", "function_call")


def drop_other_fields(message: Item) -> ChatMessage:
    """Returns a message with nothing but its role, its calls, its content and its reasoning."""
    body = decode_body(message)
    kept_names = (*KEPT_FIELDS, "content", *REASONING_FIELDS)
    return ChatMessage.from_body({name: body[name] for name in kept_names if name in body})


def redact_text(message: Item, mark: str) -> ChatMessage:
    """Returns a message whose only text is the mark. A function's name stays; a speaker's name, which may identify a
    person, is dropped."""
    body = decode_body(message)
    kept_fields = {name: body[name] for name in KEPT_FIELDS if body.get(name) is not None}
    if body.get("role") == "function":
        kept_fields["name"] = body.get("name")
    if any(body.get(name) for name in REASONING_FIELDS):
        kept_fields["reasoning_content"] = mark
    return ChatMessage.from_body({**kept_fields, "content": mark})


def redact_reasoning(message: Item, mark: str) -> ChatMessage:
    """Returns a message with the mark as its reasoning."""
    other_fields = {name: value for name, value in decode_body(message).items() if name not in REASONING_FIELDS}
    return ChatMessage.from_body({**other_fields, "reasoning_content": mark})


def redact_call(message: Item, index: int, mark: str) -> ChatMessage:
    """Returns a message in which one tool call has no arguments; a custom tool's input becomes the mark."""
    body = decode_body(message)
    if not isinstance(body.get("tool_calls"), list):
        function = body.get("function_call") or {}
        return ChatMessage.from_body({**body, "function_call": {"name": function.get("name"), "arguments": "{}"}})
    calls = list(body["tool_calls"])
    calls[index] = _strip_tool_call(calls[index], mark)
    return ChatMessage.from_body({**body, "tool_calls": calls})


def _strip_tool_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    stripped_call = {name: call[name] for name in ("id", "type") if name in call}
    if isinstance(call.get("custom"), Mapping):
        return {**stripped_call, "custom": {"name": call["custom"].get("name"), "input": mark}}
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return {**stripped_call, "function": {"name": name, "arguments": "{}"}}
