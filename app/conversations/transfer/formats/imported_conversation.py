"""The common result of all formats, chat messages with times and branches, and helpers of the parsers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import orjson

from app.conversation.item import Item
from app.dialects.chat.message import ChatMessage
from app.dialects.responses.input_items import find_item_groups
from app.dialects.responses.message import ResponsesMessage
from app.errors import InvalidRequest

TITLE, IMPORTED_FROM = "title", "imported_from"
"""Keys in the metadata of an imported conversation."""
WHOLE_FILE: Final = "The file"
"""The name of an empty location in errors."""
MAX_PAIRS: Final = 16
MAX_NAME_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
"""OpenAI's limits of metadata."""


EXPECTED_MESSAGE: Final = "a chat message: a JSON object with a 'role'"
EXPECTED_ITEMS: Final = "the Responses items of one message"


class ImportedMessage(msgspec.Struct, frozen=True):
    """A chat message and its location in the file, for errors."""

    message: Item
    location: str
    created_at: datetime | None = None


class ImportedBranch(msgspec.Struct, frozen=True):
    """A branch of an imported conversation."""

    parent_index: int
    """The parent: the conversation itself (0), or its branch `parent_index - 1`."""
    shared_messages: int
    """How many messages from the start the branch shares with its parent. Without any it becomes a separate
    conversation."""
    messages: tuple[ImportedMessage, ...]
    """The branch's own messages."""


class ImportedConversation(msgspec.Struct, frozen=True):
    """One conversation of a file."""

    messages: tuple[ImportedMessage, ...]
    location: str
    """Its location in the file; empty if the file is this one conversation."""
    title: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    external_id: str | None = None
    created_at: datetime | None = None
    branches: tuple[ImportedBranch, ...] = ()
    warnings: tuple[str, ...] = ()
    """Sentences about what could not be imported; each begins with a location."""


def invalid_file_error(location: str, expected: str) -> InvalidRequest:
    """Builds the error for an invalid file: `expected` says what belongs at `location`."""
    return InvalidRequest(
        f"{location or WHOLE_FILE}: expected {expected}.", code="invalid_value", param=location or None
    )


def build_warning(location: str, problem: str) -> str:
    """Builds a warning that begins with the location."""
    return f"{location or WHOLE_FILE}: {problem}"


def field_location(location: str, name: str) -> str:
    """Returns the location of a field of the object at `location`."""
    return f"{location}.{name}" if location else name


def decode_json(raw: bytes | memoryview, location: str, expected: str) -> Any:
    """Decodes a JSON text.

    Raises:
        InvalidRequest: the text is not valid JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid_file_error(location, f"{expected}, in valid JSON ({error})") from error


def encode_json(value: object, location: str) -> str:
    """Encodes a decoded value as JSON.

    Raises:
        InvalidRequest: the value is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise invalid_file_error(location, "JSON that is nested less deeply") from error


def expect_array(value: object, location: str, expected: str) -> list[Any]:
    """Returns a value that must be a JSON array; None counts as an empty one.

    Raises:
        InvalidRequest: the value is no array.
    """
    if not isinstance(value, list | None):
        raise invalid_file_error(location, expected)
    return value or []


def expect_object(value: object, location: str, expected: str) -> dict[str, Any]:
    """Returns a value that must be a JSON object.

    Raises:
        InvalidRequest: the value is no object.
    """
    if not isinstance(value, dict):
        raise invalid_file_error(location, expected)
    return value


def parse_logged_message(raw: bytes, location: str) -> ImportedMessage:
    """Parses a message as the log has it: a chat message, or an array with the Responses items of one message. The JSON
    text stays unchanged, so that its link stays the same.

    Raises:
        InvalidRequest: the text is no such message.
    """
    value = decode_json(raw, location, EXPECTED_MESSAGE)
    if isinstance(value, list):
        return ImportedMessage(_parse_items(raw, location), location)
    body = expect_object(value, location, EXPECTED_MESSAGE)
    if "role" not in body:
        raise invalid_file_error(location, EXPECTED_MESSAGE)
    return ImportedMessage(ChatMessage(raw, body), location)


def _parse_items(raw: bytes, location: str) -> ResponsesMessage:
    message = ResponsesMessage(raw)
    raw_items = message.raw_items
    if len(raw_items) == 1 and raw_items[0][:1] == b'"':
        return message  # the instructions of a request
    try:
        groups = find_item_groups(raw_items, may_begin_with_result=True)
    except InvalidRequest as error:
        raise invalid_file_error(location, f"{EXPECTED_ITEMS} ({error.message})") from error
    if len(groups) != 1:
        raise invalid_file_error(location, EXPECTED_ITEMS)
    return message


def parse_unix_seconds(value: object) -> datetime | None:
    """Converts Unix seconds to a time; returns None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_metadata(value: object, location: str) -> dict[str, str]:
    """Returns metadata within OpenAI's limits: the first 16 pairs, values other than text as JSON, long texts cut.

    Raises:
        InvalidRequest: a value is nested too deeply.
    """
    pairs = list(value.items()) if isinstance(value, dict) else []
    return {
        _truncate_metadata(str(name), MAX_NAME_CHARS): _truncate_metadata(
            one if isinstance(one, str) else encode_json(one, location), MAX_VALUE_CHARS
        )
        for name, one in pairs[:MAX_PAIRS]
        if one is not None
    }


def add_metadata_pair(metadata: Mapping[str, str], name: str, value: str | None) -> dict[str, str]:
    """Returns metadata with one more pair, unless it is full or has the name already."""
    if value is None or name in metadata or len(metadata) >= MAX_PAIRS:
        return dict(metadata)
    return {**metadata, name: _truncate_metadata(value, MAX_VALUE_CHARS)}


def _truncate_metadata(text: str, most_chars: int) -> str:
    """Cuts a text to the limit, and removes NUL characters, which PostgreSQL cannot store."""
    return text.replace("\0", "")[:most_chars]
