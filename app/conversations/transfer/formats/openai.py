"""Parses histories in OpenAI's form: `{"messages": […]}`, as one object, an array or lines; or a bare array of
messages. Pure.

Fine-tuning files and request bodies have this form, and so has `concertina export`, with more fields in each line.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.conversation.identity import is_valid_conversation_id
from app.conversations.transfer.formats.imported_conversation import (
    ImportedConversation,
    ImportedMessage,
    decode_json,
    field_location,
    invalid_file_error,
    parse_logged_message,
    parse_metadata,
    parse_unix_seconds,
)

EXPECTED = "an object with an array of 'messages'"
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parse_openai_histories(texts: Sequence[tuple[str, bytes]]) -> list[ImportedConversation]:
    """Parses the conversations of a file.

    Args:
        texts: the JSON text of each history, after its location for errors.

    Raises:
        InvalidRequest: a text is no history.
    """
    if not texts:
        raise invalid_file_error("line 1", EXPECTED)
    return [_parse_conversation(raw, where) for where, raw in texts]


def parse_bare_message_array(raw: bytes) -> list[ImportedConversation]:
    """Parses a bare array of messages, which is one conversation."""
    return [ImportedConversation(messages=_parse_messages(raw, ""), location="")]


def _parse_conversation(raw: bytes, location: str) -> ImportedConversation:
    try:
        fields = _decode_object(raw)
    except msgspec.ValidationError as error:
        raise invalid_file_error(location, EXPECTED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_file_error(location, f"{EXPECTED}, in valid JSON ({error})") from error
    if "messages" not in fields:
        raise invalid_file_error(location, EXPECTED)
    other_fields = {
        name: decode_json(bytes(text), field_location(location, name), "JSON")
        for name, text in fields.items()
        if name in _EXPORT_FIELDS
    }
    name = other_fields.get("external_id")
    return ImportedConversation(
        messages=_parse_messages(bytes(fields["messages"]), field_location(location, "messages")),
        location=location,
        metadata=parse_metadata(other_fields.get("metadata"), field_location(location, "metadata")),
        external_id=name if isinstance(name, str) and is_valid_conversation_id(name) else None,
        created_at=parse_unix_seconds(other_fields.get("created_at")),
    )


_EXPORT_FIELDS = ("metadata", "external_id", "created_at")
"""Fields that a line of `concertina export` has beside its messages."""


def _parse_messages(raw: bytes, location: str) -> tuple[ImportedMessage, ...]:
    try:
        texts = _decode_array(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_file_error(location, f"an array of chat messages ({error})") from error
    return tuple(parse_logged_message(bytes(text), f"{location}[{index}]") for index, text in enumerate(texts))
