"""Parses a file of conversations: one message per line, or histories in OpenAI's form. Pure.

One message per line is the gateway's own export of one conversation, in the JSON text that was stored. Fine-tuning
files and request bodies have OpenAI's form, `{"messages": […]}` as one object, an array or lines, or a bare array of
messages. The lines of `concertina export` have it, too, with more fields.

The outermost level is split without decoding what is inside. So a file of many megabytes is decoded piece by piece, and
other threads can run between the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, Literal

import msgspec
import orjson

from app.conversation.identity import is_valid_conversation_id
from app.conversation.item import INSTRUCTION_ROLES, Item
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item, is_messages_text
from app.dialects.items.input_items import find_item_groups
from app.dialects.items.message import ResponsesMessage
from app.errors import InvalidRequest

Format = Literal["auto", "jsonl", "openai"]
IMPORTED_FROM: Final = "imported_from"
"""A key in the metadata of an imported conversation."""
MAX_PAIRS: Final = 16
MAX_NAME_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
"""OpenAI's limits of metadata."""

EXPECTED_FILE: Final = "one chat message per line, or objects with an array of 'messages'"
EXPECTED_HISTORY: Final = "an object with an array of 'messages'"
EXPECTED_MESSAGE: Final = "a chat message: a JSON object with a 'role'"
EXPECTED_ITEMS: Final = "the Responses items of one message"

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ImportedMessage(msgspec.Struct, frozen=True):
    """A message and its location in the file, for errors."""

    message: Item
    location: str


class ImportedConversation(msgspec.Struct, frozen=True):
    """One conversation of a file."""

    messages: tuple[ImportedMessage, ...]
    location: str
    """Its location in the file; empty if the file is this one conversation."""
    metadata: Mapping[str, str]
    external_id: str | None = None
    created_at: datetime | None = None

    @property
    def instructions(self) -> tuple[ImportedMessage, ...]:
        """The system and developer messages at the beginning."""
        return tuple(takewhile(lambda one: one.message.role in INSTRUCTION_ROLES, self.messages))

    @property
    def log(self) -> tuple[ImportedMessage, ...]:
        """The messages after the instructions."""
        return self.messages[len(self.instructions) :]


def parse_import_file(data: bytes, file_format: Format = "auto") -> list[ImportedConversation]:
    """Parses the conversations of a file; there is at least one.

    Raises:
        InvalidRequest: the file does not have the requested format, or none of the two; `param` names the place.
    """
    # Some programs write a byte order mark, which JSON does not allow.
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    if file_format == "jsonl" or (file_format == "auto" and _is_message_per_line(data)):
        messages = tuple(_parse_message(line, location) for location, line in _split_lines(data))
        conversations = [ImportedConversation(messages, "line 1", {IMPORTED_FROM: "concertina"})] if messages else []
    else:
        conversations = _parse_histories(data)
    if not conversations:
        raise _build_file_error("", EXPECTED_FILE)
    return conversations


def _is_message_per_line(data: bytes) -> bool:
    """Returns whether the first line is a message: an object with a role or of the Messages API, or the Responses items
    of a message. An array without further lines counts as a history."""
    line, _, rest = data.partition(b"\n")
    if line[:1] == b"[":
        try:
            return bool(rest and _decode_array(line))
        except _DECODE_ERRORS:
            return False
    fields = _decode_fields(line)
    return ("role" in fields or is_messages_text(line)) and "messages" not in fields


def _parse_histories(data: bytes) -> list[ImportedConversation]:
    if data[:1] == b"[":
        elements = _decode_messages(data, "")
        if elements and "role" in _decode_fields(elements[0][1]):
            messages = tuple(_parse_message(raw, location) for location, raw in elements)
            return [ImportedConversation(messages, "", {IMPORTED_FROM: "openai"})]
    else:
        elements = [("", data)] if _decode_fields(data) else _split_lines(data)
    return [_parse_history(raw, location) for location, raw in elements]


def _parse_history(raw: bytes, location: str) -> ImportedConversation:
    """Parses a history. A line of `concertina export` also has metadata, the client's id and a time."""
    try:
        fields = _decode_object(raw)
    except msgspec.ValidationError as error:
        raise _build_file_error(location, EXPECTED_FILE) from error
    except _DECODE_ERRORS as error:
        raise _build_file_error(location, f"{EXPECTED_FILE}, in valid JSON ({error})") from error
    if "messages" not in fields:
        raise _build_file_error(location, EXPECTED_HISTORY)
    metadata, external_id, created_at = (
        _decode_json(bytes(fields[name]), _field_location(location, name), "JSON") if name in fields else None
        for name in ("metadata", "external_id", "created_at")
    )
    messages = _decode_messages(bytes(fields["messages"]), _field_location(location, "messages"))
    return ImportedConversation(
        messages=tuple(_parse_message(text, where) for where, text in messages),
        location=location,
        metadata=_parse_metadata(metadata, _field_location(location, "metadata")),
        external_id=external_id if isinstance(external_id, str) and is_valid_conversation_id(external_id) else None,
        created_at=_parse_unix_seconds(created_at),
    )


def _parse_message(raw: bytes, location: str) -> ImportedMessage:
    """Parses a message as the log has it: a chat message, or an array with the Responses items of one message. The JSON
    text stays unchanged, so that its link stays the same."""
    value = _decode_json(raw, location, EXPECTED_MESSAGE)
    if isinstance(value, list):
        return ImportedMessage(_parse_items(raw, location), location)
    if is_messages_text(raw):
        return ImportedMessage(decode_item(raw), location)
    if not isinstance(value, dict) or "role" not in value:
        raise _build_file_error(location, EXPECTED_MESSAGE)
    return ImportedMessage(ChatMessage(raw, value), location)


def _parse_items(raw: bytes, location: str) -> Item:
    message = ResponsesMessage(raw)
    raw_items = message.raw_items
    if len(raw_items) == 1 and raw_items[0][:1] == b'"':
        return message  # the instructions of a request
    try:
        groups = find_item_groups(raw_items, may_begin_with_result=True)
    except InvalidRequest as error:
        raise _build_file_error(location, f"{EXPECTED_ITEMS} ({error.message})") from error
    if len(groups) != 1:
        raise _build_file_error(location, EXPECTED_ITEMS)
    return message


def _parse_metadata(value: object, location: str) -> dict[str, str]:
    """Returns metadata within OpenAI's limits: the first 16 pairs, values other than text as JSON, long texts cut. If
    there is room, it says where the conversation comes from."""
    pairs = list(value.items()) if isinstance(value, dict) else []
    try:
        metadata = {
            _truncate(str(name), MAX_NAME_CHARS): _truncate(
                one if isinstance(one, str) else orjson.dumps(one).decode(), MAX_VALUE_CHARS
            )
            for name, one in pairs[:MAX_PAIRS]
            if one is not None
        }
    except TypeError as error:
        raise _build_file_error(location, "JSON that is nested less deeply") from error
    if len(metadata) < MAX_PAIRS:
        metadata.setdefault(IMPORTED_FROM, "openai")
    return metadata


def _truncate(text: str, max_chars: int) -> str:
    """Cuts a text to the limit, and removes NUL characters, which PostgreSQL cannot store."""
    return text.replace("\0", "")[:max_chars]


def _parse_unix_seconds(value: object) -> datetime | None:
    """Converts Unix seconds to a time; returns None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _split_lines(data: bytes) -> list[tuple[str, bytes]]:
    """Returns the lines of a file that are not blank, each after its location for errors."""
    lines = enumerate(data.split(b"\n"), start=1)
    return [(f"line {number}", text) for number, line in lines if (text := line.strip())]


def _decode_messages(raw: bytes, location: str) -> Sequence[tuple[str, bytes]]:
    """Returns the elements of an array without decoding them, each after its location for errors."""
    try:
        return [(f"{location}[{index}]", bytes(text)) for index, text in enumerate(_decode_array(raw))]
    except _DECODE_ERRORS as error:
        raise _build_file_error(location, f"a JSON array ({error})") from error


def _decode_fields(raw: bytes) -> Mapping[str, msgspec.Raw]:
    """Returns the undecoded fields of a JSON object; none for anything else."""
    try:
        return _decode_object(raw)
    except _DECODE_ERRORS:
        return {}


def _decode_json(raw: bytes, location: str, expected: str) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _build_file_error(location, f"{expected}, in valid JSON ({error})") from error


def _field_location(location: str, name: str) -> str:
    return f"{location}.{name}" if location else name


def _build_file_error(location: str, expected: str) -> InvalidRequest:
    """Builds the error for an invalid file: `expected` says what belongs at `location`."""
    return InvalidRequest(
        f"{location or 'The file'}: expected {expected}.", code="invalid_value", param=location or None
    )
