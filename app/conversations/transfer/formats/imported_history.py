"""What every format is read into: chat messages with their times, and the branches of a conversation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import orjson

from app.conversation.messages import Message
from app.errors import InvalidRequest

TITLE, IMPORTED_FROM = "title", "imported_from"
"""`Conversation.metadata` of what was imported."""
WHOLE_FILE: Final = "The file"
"""What errors call a place without a name."""
MAX_PAIRS: Final = 16
MAX_NAME_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
"""OpenAI's limits of metadata."""


class ImportedMessage(msgspec.Struct, frozen=True):
    """A chat message and the place in the file that errors name."""

    message: Message
    location: str
    created_at: datetime | None = None


class ImportedBranch(msgspec.Struct, frozen=True):
    """Another way on from somewhere in a conversation."""

    parent_index: int
    """Which messages it shares: those of the conversation itself (0), or of its branch `of - 1`."""
    shared_messages: int
    """How many messages it shares from the start. With none it becomes a conversation of its own."""
    messages: tuple[ImportedMessage, ...]
    """What follows on them."""


class ImportedConversation(msgspec.Struct, frozen=True):
    """One conversation of a file."""

    messages: tuple[ImportedMessage, ...]
    location: str
    """Its place in the file; empty if the file is this one conversation."""
    title: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    external_id: str | None = None
    created_at: datetime | None = None
    branches: tuple[ImportedBranch, ...] = ()
    warnings: tuple[str, ...] = ()
    """What of it could not be kept, a sentence each; they begin with the place."""


def format_error(location: str, expected: str) -> InvalidRequest:
    """The error of a file that is not what it must be: `location` names the place, `expected` what belongs there."""
    return InvalidRequest(
        f"{location or WHOLE_FILE}: expected {expected}.", code="invalid_value", param=location or None
    )


def build_warning(location: str, what: str) -> str:
    """A warning, which begins with the place."""
    return f"{location or WHOLE_FILE}: {what}"


def field_location(location: str, name: str) -> str:
    """The place of a field of what is at `location`."""
    return f"{location}.{name}" if location else name


def decode_json(raw: bytes | memoryview, location: str, expected: str) -> Any:
    """A decoded JSON text.

    Raises:
        InvalidRequest: it is no JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise format_error(location, f"{expected}, in valid JSON ({error})") from error


def encode_json(value: object, location: str) -> str:
    """The JSON text of a decoded value.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise format_error(location, "JSON that is nested less deeply") from error


def expect_array(value: object, location: str, expected: str) -> list[Any]:
    """A value that must be a JSON array; None stands for an empty one.

    Raises:
        InvalidRequest: it is none.
    """
    if not isinstance(value, list | None):
        raise format_error(location, expected)
    return value or []


def expect_object(value: object, location: str, expected: str) -> dict[str, Any]:
    """A value that must be a JSON object.

    Raises:
        InvalidRequest: it is none.
    """
    if not isinstance(value, dict):
        raise format_error(location, expected)
    return value


def parse_unix_seconds(value: object) -> datetime | None:
    """Unix seconds as a time; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_metadata(value: object, location: str) -> dict[str, str]:
    """Metadata as far as it can be kept: 16 pairs, values that are no texts as their JSON, the long ones cut.

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


def add_metadata(metadata: Mapping[str, str], name: str, value: str | None) -> dict[str, str]:
    """Metadata with one more pair, if there is room for it and it says nothing of that name yet."""
    if value is None or name in metadata or len(metadata) >= MAX_PAIRS:
        return dict(metadata)
    return {**metadata, name: _truncate_metadata(value, MAX_VALUE_CHARS)}


def _truncate_metadata(text: str, most_chars: int) -> str:
    """A text as metadata can hold it."""
    return text.replace("\0", "")[:most_chars]
