"""Restores fields that clients leave out when they send an answer back, and that providers insist on. Pure.

DeepSeek wants `reasoning_content` back wherever tools were called (https://api-docs.deepseek.com/guides/thinking_mode),
Gemini `extra_content.google.thought_signature` of each step of the current tool loop
(https://ai.google.dev/gemini-api/docs/thought-signatures), OpenRouter takes `reasoning_details`. Most clients drop
them. They are restored from the stored answers, byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from app.conversation.json_text import decode_json_or
from app.dialects.body.canonical_message import canonicalize_message
from app.dialects.request_body import encode_fields
from app.upstream.quirks.message_and_request_fields import CALL_PROPERTY_PREFIX
from app.upstream.quirks.outgoing_message import (
    OutgoingMessage,
    is_empty_value,
    parse_array_elements,
    parse_object_members,
    render_array,
)


def find_messages_missing_fields(
    messages: Sequence[bytes], fields: Collection[str], scope: RestoreScope
) -> tuple[int, ...]:
    """Returns the indexes of the assistant messages within the scope that lack at least one of the fields,
    ascending.
    """
    outgoing = [OutgoingMessage(raw) for raw in messages]
    return tuple(
        index
        for index in sorted(find_answers_in_scope(scope, outgoing))
        if any(_is_missing_field(outgoing[index], name) for name in fields)
    )


def restore_missing_fields(
    messages: Sequence[bytes], stored_messages: Sequence[bytes], fields: Collection[str], scope: RestoreScope
) -> list[bytes]:
    """Returns the messages with missing fields taken from stored answers that say the same.

    Two messages say the same if their canonical forms are equal: a call whose arguments were shortened gets no
    signature, which would not be valid for it. Equal answers are paired from the newest back. A message without a
    stored answer stays as it is.

    Args:
        messages: the messages of a request.
        stored_messages: the newest messages of the log, oldest first.
        fields: names of the fields to restore.
        scope: which messages need them.
    """
    restored_messages = list(messages)
    keys = [_canonical_answer(raw) for raw in stored_messages]
    for index in reversed(find_messages_missing_fields(messages, fields, scope)):
        canonical_answer = _canonical_answer(messages[index])
        if canonical_answer is None or canonical_answer not in keys:
            continue
        # Stored answers after the match are used up, too: the pairs must keep the order of the log.
        while keys.pop() != canonical_answer:
            pass
        restored_messages[index] = _restore_message_fields(messages[index], stored_messages[len(keys)], fields)
    return restored_messages


def _canonical_answer(raw: bytes) -> bytes | None:
    body = decode_json_or(raw, None)
    return canonicalize_message(body) if isinstance(body, dict) and body.get("role") == "assistant" else None


def _is_missing_field(message: OutgoingMessage, field: str) -> bool:
    if not field.startswith(CALL_PROPERTY_PREFIX):
        return is_empty_value(message[field])
    name = field.removeprefix(CALL_PROPERTY_PREFIX)
    return bool(message.tool_calls) and all(is_empty_value(call.get(name, b"")) for call in message.tool_calls)


def _restore_message_fields(raw: bytes, stored_answer: bytes, fields: Collection[str]) -> bytes:
    message, answer = OutgoingMessage(raw), OutgoingMessage(stored_answer)
    for field in fields:
        if not _is_missing_field(message, field) or _is_missing_field(answer, field):
            continue
        if field.startswith(CALL_PROPERTY_PREFIX):
            message["tool_calls"] = _restore_call_property(message, answer, field.removeprefix(CALL_PROPERTY_PREFIX))
        else:
            message[field] = answer[field]
    return message.raw


def _restore_call_property(message: OutgoingMessage, answer: OutgoingMessage, name: str) -> bytes:
    """Returns the calls with a property of the stored answer's calls at the same places: equal canonical forms have
    equal calls.
    """
    elements = parse_array_elements(message["tool_calls"])
    for index, call in enumerate(answer.tool_calls):
        members = parse_object_members(elements[index]) if index < len(elements) else None
        if members is not None and not is_empty_value(call.get(name, b"")):
            elements[index] = encode_fields({**members, name: call[name]})
    return render_array(elements)


RestoreScope = Literal["tool_loop", "tool_turns"]


def find_answers_in_scope(scope: RestoreScope, messages: Sequence[OutgoingMessage]) -> set[int]:
    """Returns the indexes of the assistant messages from the newest user message on; with `tool_turns` also those of
    each earlier turn that called a tool.
    """
    indexes: set[int] = set()
    answer_indexes: list[int] = []
    has_called_tool = False
    for index, message in enumerate(messages):
        if message.role == "user":
            indexes.update(answer_indexes if has_called_tool and scope == "tool_turns" else ())
            answer_indexes, has_called_tool = [], False
        elif message.role == "assistant":
            answer_indexes.append(index)
            has_called_tool = has_called_tool or message.calls_tools
    return indexes.union(answer_indexes)
