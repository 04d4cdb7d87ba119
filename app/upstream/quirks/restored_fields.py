"""What clients leave out of our answers when they send them back, and providers insist on. Pure.

DeepSeek wants `reasoning_content` back wherever tools were called (https://api-docs.deepseek.com/guides/thinking_mode),
Gemini `extra_content.google.thought_signature` of each step of the tool loop under way
(https://ai.google.dev/gemini-api/docs/thought-signatures), OpenRouter takes `reasoning_details`. Most clients drop
them. Here they are put back from the answers that are stored, byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from app.conversation.canonical_form import canonical
from app.upstream.quirks.message_properties import CALL_PREFIX
from app.upstream.quirks.outgoing_message import (
    Outgoing,
    array_of,
    decoded,
    elements_of,
    is_empty,
    members_of,
    object_of,
)


def missing_fields(messages: Sequence[bytes], fields: Collection[str], scope: Scope) -> tuple[int, ...]:
    """Indexes of the assistant messages within the scope that lack at least one of the fields, ascending."""
    outgoing = [Outgoing(raw) for raw in messages]
    return tuple(
        index for index in sorted(indexes_in(scope, outgoing)) if any(_lacks(outgoing[index], name) for name in fields)
    )


def restored(messages: Sequence[bytes], stored: Sequence[bytes], fields: Collection[str], scope: Scope) -> list[bytes]:
    """The messages with what they lack, taken from stored answers that say the same.

    The same is what has the same canonical form: a call whose arguments were shortened gets no signature, which would
    not be valid for it. Equal answers are paired from the newest back. Where none is found, a message stays as it is.

    Args:
        stored: the newest messages of the log, oldest first.
    """
    filled = list(messages)
    keys = [_key(raw) for raw in stored]
    for index in reversed(missing_fields(messages, fields, scope)):
        wanted = _key(messages[index])
        if wanted is None or wanted not in keys:
            continue
        while keys.pop() != wanted:
            pass
        filled[index] = _filled(messages[index], stored[len(keys)], fields)
    return filled


def _key(raw: bytes) -> bytes | None:
    body = decoded(raw)
    return canonical(body) if isinstance(body, dict) and body.get("role") == "assistant" else None


def _lacks(message: Outgoing, field: str) -> bool:
    if not field.startswith(CALL_PREFIX):
        return is_empty(message[field])
    name = field.removeprefix(CALL_PREFIX)
    return bool(message.calls) and all(is_empty(call.get(name, b"")) for call in message.calls)


def _filled(raw: bytes, stored: bytes, fields: Collection[str]) -> bytes:
    message, answer = Outgoing(raw), Outgoing(stored)
    for field in fields:
        if not _lacks(message, field) or _lacks(answer, field):
            continue
        if field.startswith(CALL_PREFIX):
            message["tool_calls"] = _filled_calls(message, answer, field.removeprefix(CALL_PREFIX))
        else:
            message[field] = answer[field]
    return message.raw


def _filled_calls(message: Outgoing, answer: Outgoing, name: str) -> bytes:
    """The calls with a property of the answer's calls at the same places: the canonical form says they are the same."""
    elements = elements_of(message["tool_calls"])
    for place, call in enumerate(answer.calls):
        members = members_of(elements[place]) if place < len(elements) else None
        if members is not None and not is_empty(call.get(name, b"")):
            elements[place] = object_of({**members, name: call[name]})
    return array_of(elements)


Scope = Literal["tool_loop", "tool_turns"]


def indexes_in(scope: Scope, messages: Sequence[Outgoing]) -> set[int]:
    """Indexes of the assistant messages from the newest user message on, and with `tool_turns` also of those in each
    earlier turn that called a tool."""
    found: set[int] = set()
    turn: list[int] = []
    calls = False
    for index, message in enumerate(messages):
        if message.role == "user":
            found.update(turn if calls and scope == "tool_turns" else ())
            turn, calls = [], False
        elif message.role == "assistant":
            turn.append(index)
            calls = calls or message.has_calls
    return found.union(turn)
