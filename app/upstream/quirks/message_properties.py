"""What a message may consist of: known properties, no nulls, text as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from app.conversation.canonical_form import REASONING_PARTS
from app.upstream.provider import Quirks
from app.upstream.quirks.outgoing_message import (
    Outgoing,
    array_of,
    decoded,
    elements_of,
    is_empty,
    is_text,
    joined_content,
    members_of,
    object_of,
    text_of_parts,
)

CALL_PREFIX: Final = "tool_calls."
"""`tool_calls.extra_content` names a property of each call."""
_ALWAYS: Final = {"assistant": {"tool_calls", "function_call"}, "tool": {"tool_call_id"}, "function": {"name"}}
"""Properties that no list has to name, by role, besides `role` and `content`."""
_NEVER_DROPPED: Final = frozenset({"content", "tool_call_id"})
_CALL_ALWAYS: Final = frozenset({"id", "type", "function", "custom"})


def fit_properties(quirks: Quirks, message: Outgoing) -> None:
    """Leave out what the provider does not know or refuses; a refusal that has to go is said as content."""
    refused, known = frozenset(quirks.strip_message_fields), quirks.message_fields
    if not message.role or not (refused or known is not None or quirks.drop_nulls):
        return
    if not _stays("refusal", message.role, refused, known):
        _say_refusal(message)
    members = {
        name: raw
        for name, raw in message.members.items()
        if _stays(name, message.role, refused, known)
        and not (quirks.drop_nulls and name not in _NEVER_DROPPED and is_empty(raw))
    }
    message.replace(members)
    if not is_empty(message["tool_calls"]):
        _fit_calls(message, refused, known)


def _stays(name: str, role: str, refused: Collection[str], known: Collection[str] | None) -> bool:
    if name in ("role", "content"):
        return True
    return name not in refused and (known is None or name in known or name in _ALWAYS.get(role, ()))


def _say_refusal(message: Outgoing) -> None:
    if is_text(message["refusal"]) and not is_empty(message["refusal"]):
        message["content"] = joined_content([message.content, message["refusal"]])


def _fit_calls(message: Outgoing, refused: Collection[str], known: Collection[str] | None) -> None:
    elements = elements_of(message["tool_calls"])
    fitting = [_fitting_call(element, refused, known) for element in elements]
    if fitting != elements:
        message["tool_calls"] = array_of(fitting)


def _fitting_call(element: bytes, refused: Collection[str], known: Collection[str] | None) -> bytes:
    members: Mapping[str, bytes] = members_of(element) or {}
    left = {
        name: raw
        for name, raw in members.items()
        if CALL_PREFIX + name not in refused and (known is None or name in _CALL_ALWAYS or CALL_PREFIX + name in known)
    }
    return element if len(left) == len(members) else object_of(left)


def flatten_text(message: Outgoing) -> None:
    """A list of text parts as one string: templates that read lists often read no more than the first part."""
    if (text := text_of_parts(message.content)) is not None:
        message["content"] = text


def fit_empty_content(message: Outgoing, empty: bytes) -> None:
    """Write an assistant's missing content in the one way that the provider takes."""
    if message.role == "assistant" and is_empty(message.content):
        message["content"] = empty


_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens")


def fitting_fields(quirks: Quirks, fields: dict[str, bytes]) -> dict[str, bytes]:
    """Name → JSON text without what the provider refuses; the same object where nothing has to change."""
    unwanted = {name for name in quirks.strip_fields if name in fields}
    if not quirks.stream_usage and "stream_options" in fields:
        unwanted.add("stream_options")
    renamed: dict[str, str] = {}
    if (known := quirks.max_tokens_field) is not None:
        for other in (name for name in _OUTPUT_FIELDS if name != known and name in fields):
            if known in fields:
                unwanted.add(other)
            else:
                renamed[other] = known
    if not unwanted and not renamed:
        return fields
    return {renamed.get(name, name): raw for name, raw in fields.items() if name not in unwanted}


REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details")


def without_reasoning(messages: Sequence[Outgoing], kept: Collection[int]) -> None:
    """Take the reasoning out of all assistant messages but those at the indexes in `kept`."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index not in kept:
            message.replace({name: raw for name, raw in message.members.items() if name not in REASONING_FIELDS})
            _drop_parts(message)


def _drop_parts(message: Outgoing) -> None:
    parts = elements_of(message.content)
    left = [part for part in parts if decoded((members_of(part) or {}).get("type", b"null")) not in REASONING_PARTS]
    if len(left) < len(parts):
        message["content"] = array_of(left) if left else b'""'
