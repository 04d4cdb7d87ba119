"""Fits the properties of messages to a provider: known properties only, no nulls, text as one string. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from app.conversation.json_text import decode_json_or
from app.dialects.body.message_fields import REASONING_PART_TYPES
from app.dialects.request_body import encode_fields
from app.upstream.provider_contract import ProviderQuirks
from app.upstream.quirks.outgoing_message import (
    OutgoingMessage,
    is_empty_value,
    join_contents,
    join_text_parts,
    parse_array_elements,
    parse_object_members,
    render_array,
)

CALL_PROPERTY_PREFIX: Final = "tool_calls."
"""`tool_calls.extra_content` names a property of each call."""
_REQUIRED_PROPERTIES: Final = {
    "assistant": {"tool_calls", "function_call"},
    "tool": {"tool_call_id"},
    "function": {"name"},
}
"""Properties by role that `message_fields` need not list, besides `role` and `content`."""
_NEVER_DROPPED_PROPERTIES: Final = frozenset({"content", "tool_call_id"})
_REQUIRED_CALL_PROPERTIES: Final = frozenset({"id", "type", "function", "custom"})


def remove_refused_properties(quirks: ProviderQuirks, message: OutgoingMessage) -> None:
    """Removes properties that the provider does not know or refuses. A refusal that must go becomes content, so that
    its words are kept.
    """
    refused, known_properties = frozenset(quirks.strip_message_fields), quirks.message_fields
    if not message.role or not (refused or known_properties is not None or quirks.drop_nulls):
        return
    if not _is_accepted_message_property("refusal", message.role, refused, known_properties):
        _move_refusal_to_content(message)
    members = {
        name: raw
        for name, raw in message.members.items()
        if _is_accepted_message_property(name, message.role, refused, known_properties)
        and not (quirks.drop_nulls and name not in _NEVER_DROPPED_PROPERTIES and is_empty_value(raw))
    }
    message.replace_members(members)
    if not is_empty_value(message["tool_calls"]):
        _remove_refused_call_properties(message, refused, known_properties)


def _is_accepted_message_property(
    name: str, role: str, refused: Collection[str], known_properties: Collection[str] | None
) -> bool:
    if name in ("role", "content"):
        return True
    return name not in refused and (
        known_properties is None or name in known_properties or name in _REQUIRED_PROPERTIES.get(role, ())
    )


def _move_refusal_to_content(message: OutgoingMessage) -> None:
    if message["refusal"][:1] == b'"' and not is_empty_value(message["refusal"]):
        message["content"] = join_contents([message.content, message["refusal"]])


def _remove_refused_call_properties(
    message: OutgoingMessage, refused: Collection[str], known_properties: Collection[str] | None
) -> None:
    elements = parse_array_elements(message["tool_calls"])
    fitting = [_remove_refused_members(element, refused, known_properties) for element in elements]
    if fitting != elements:
        message["tool_calls"] = render_array(fitting)


def _remove_refused_members(
    element: bytes, refused: Collection[str], known_properties: Collection[str] | None
) -> bytes:
    members: Mapping[str, bytes] = parse_object_members(element) or {}
    accepted = {
        name: raw
        for name, raw in members.items()
        if CALL_PROPERTY_PREFIX + name not in refused
        and (
            known_properties is None
            or name in _REQUIRED_CALL_PROPERTIES
            or CALL_PROPERTY_PREFIX + name in known_properties
        )
    }
    return element if len(accepted) == len(members) else encode_fields(accepted)


def flatten_text(message: OutgoingMessage) -> None:
    """Writes a list of text parts as one string: templates that read lists often read only the first part."""
    if (text := join_text_parts(message.content)) is not None:
        message["content"] = text


def write_missing_content(message: OutgoingMessage, empty: bytes) -> None:
    """Writes an assistant's missing content in the form that the provider takes."""
    if message.role == "assistant" and is_empty_value(message.content):
        message["content"] = empty


_MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


def fit_request_fields(quirks: ProviderQuirks, fields: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the fields (name → JSON text) without those that the provider refuses; the same object if nothing
    changes.
    """
    unwanted = {name for name in quirks.strip_fields if name in fields}
    if not quirks.stream_usage and "stream_options" in fields:
        unwanted.add("stream_options")
    renamed: dict[str, str] = {}
    if (known_max_tokens_field := quirks.max_tokens_field) is not None:
        for other in (name for name in _MAX_TOKENS_FIELDS if name != known_max_tokens_field and name in fields):
            # The client sent both names: the one that the provider knows counts.
            if known_max_tokens_field in fields:
                unwanted.add(other)
            else:
                renamed[other] = known_max_tokens_field
    if not unwanted and not renamed:
        return fields
    return {renamed.get(name, name): raw for name, raw in fields.items() if name not in unwanted}


REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details")


def strip_reasoning(messages: Sequence[OutgoingMessage], kept_indexes: Collection[int]) -> None:
    """Removes the reasoning from all assistant messages except those at `kept_indexes`."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index not in kept_indexes:
            message.replace_members(
                {name: raw for name, raw in message.members.items() if name not in REASONING_FIELDS}
            )
            _strip_reasoning_parts(message)


def _strip_reasoning_parts(message: OutgoingMessage) -> None:
    parts = parse_array_elements(message.content)
    kept_parts = [
        part
        for part in parts
        if decode_json_or((parse_object_members(part) or {}).get("type", b"null"), None) not in REASONING_PART_TYPES
    ]
    if len(kept_parts) < len(parts):
        message["content"] = render_array(kept_parts) if kept_parts else b'""'
