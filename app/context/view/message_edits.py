"""Edits of messages: what was done to each message, as data, and how it is done again. Pure.

A view is rendered anew for each request. The store keeps the operations that shortened a message, not its short text,
so the same message has the same bytes until the next cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from app.context.stages.text_truncation import (
    DEFAULT_HEAD_SHARE,
    truncate_arguments,
    truncate_content,
    truncate_message_texts,
)
from app.context.stages.tool_round_text import render_tool_round
from app.conversation.canonical_form import REASONING_PART_TYPES
from app.conversation.conversation_types import Message

EditKind = Literal["masked", "truncated", "cleared", "told"]
EditOperation = tuple[str | int | float, ...]
"""The name of an operation, then its arguments."""
MessageBody = dict[str, Any]

REASONING_FIELDS: Final = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")


class Edit(msgspec.Struct, frozen=True):
    """What a view shows in place of a message."""

    seq: int
    kind: EditKind
    ops: tuple[EditOperation, ...]
    tokens: int
    """Raw count of what is shown; 0 if the edit of another message stands for this message, too."""
    saved_tokens: int
    """Raw count of the message less `tokens`."""


def render_edited_message(edit: Edit, find_message: Callable[[int], Message]) -> Message | None:
    """Returns the message as it is shown; None if the edit of another message stands for it."""
    message = find_message(edit.seq)
    name = edit.ops[0][0]
    if name == "gone":
        return None
    if name == "tell":
        _, count, chars = edit.ops[0]
        text = render_tool_round([find_message(seq) for seq in range(edit.seq, edit.seq + int(count))], int(chars))
        return Message.from_body({"role": "assistant", "content": text})
    return Message.from_body(apply_edit_operations(message.body, edit.ops))


def count_replaced_messages(edit: Edit) -> int:
    """Returns how many log messages the shown message stands for; 0 if the edit of another message stands for
    this one.
    """
    name, *arguments = edit.ops[0]
    if name == "gone":
        return 0
    return int(arguments[0]) if name == "tell" else 1


def apply_edit_operations(body: MessageBody, operations: Sequence[EditOperation]) -> MessageBody:
    """Returns a copy of a message with operations applied."""
    for name, *arguments in operations:
        body = OPERATIONS[str(name)](body, *arguments)
    return body


def add_edit_operation(operations: Sequence[EditOperation], operation: EditOperation) -> tuple[EditOperation, ...]:
    """Returns the operations with one more; it replaces an earlier operation of the same name."""
    return (*(known for known in operations if known[0] != operation[0]), operation)


def _shorten_texts(body: MessageBody, share: float) -> MessageBody:
    """Keeps a share of the characters of each long text."""
    return truncate_message_texts(body, share)


def _shorten_content(body: MessageBody, chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> MessageBody:
    """Keeps about `chars` characters of the content, `head_share` of them from its beginning."""
    return {**body, "content": truncate_content(body.get("content"), chars, head_share)}


def _shorten_arguments(body: MessageBody, chars: int) -> MessageBody:
    """Keeps about `chars` characters of the arguments of each call. They remain a JSON object."""
    return _change_call_arguments(body, lambda arguments: truncate_arguments(arguments, chars))


def _replace_content(body: MessageBody, text: str) -> MessageBody:
    """Replaces the content by a short text."""
    return {**body, "content": text}


def _clear_arguments(body: MessageBody) -> MessageBody:
    """Replaces the arguments of each call by an empty object."""
    return _change_call_arguments(body, lambda _: "{}")


def _remove_reasoning(body: MessageBody) -> MessageBody:
    """Removes reasoning."""
    kept = {name: value for name, value in body.items() if name not in REASONING_FIELDS}
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [part for part in content if not is_reasoning_part(part)]
    return kept


def is_reasoning_part(part: object) -> bool:
    """Says whether a content part is a model's reasoning."""
    return isinstance(part, Mapping) and part.get("type") in REASONING_PART_TYPES


def _change_call_arguments(body: MessageBody, change: Callable[[str], str]) -> MessageBody:
    copy = dict(body)
    if isinstance(body.get("tool_calls"), list):
        copy["tool_calls"] = [_change_tool_call_arguments(call, change) for call in body["tool_calls"]]
    if isinstance(body.get("function_call"), dict):
        copy["function_call"] = _change_function_arguments(body["function_call"], change)
    return copy


def _change_tool_call_arguments(call: object, change: Callable[[str], str]) -> object:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {**call, "function": _change_function_arguments(call["function"], change)}


def _change_function_arguments(function: MessageBody, change: Callable[[str], str]) -> MessageBody:
    arguments = function.get("arguments")
    return {**function, "arguments": change(arguments)} if isinstance(arguments, str) else function


OPERATIONS: Final[Mapping[str, Callable[..., MessageBody]]] = {
    "shorten": _shorten_texts,
    "contents": _shorten_content,
    "arguments": _shorten_arguments,
    "say": _replace_content,
    "inputs": _clear_arguments,
    "thoughtless": _remove_reasoning,
}
"""The names are stored with conversations: an operation keeps its name."""
