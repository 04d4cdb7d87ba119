"""Detects the format of a file by its shape, and parses it. Pure.

The outermost level is split without decoding what is inside. So a file of many megabytes is decoded piece by piece, and
other threads can run between the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from app.conversations.transfer.formats import chatgpt, jsonl, langchain, openai
from app.conversations.transfer.formats.imported_conversation import (
    IMPORTED_FROM,
    TITLE,
    ImportedConversation,
    add_metadata_pair,
    decode_json,
    invalid_file_error,
)

Format = Literal["auto", "jsonl", "openai", "chatgpt", "langchain"]
EXPECTED: Final = (
    "one chat message per line, objects with 'messages', conversations.json of a ChatGPT export, or a dump of "
    "LangChain messages"
)
Fields = Mapping[str, msgspec.Raw]
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse_import_file(data: bytes, file_format: Format = "auto") -> list[ImportedConversation]:
    """Parses the conversations of a file; there is at least one.

    Raises:
        InvalidRequest: the file does not have the requested format, or no known one; `param` names the place.
    """
    # Some programs write a byte order mark, which JSON does not allow.
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    kind = _detect_format(data) if file_format == "auto" else file_format
    conversations = _parse_as_format(data, kind)
    if not conversations:
        raise invalid_file_error("", "at least one conversation with messages in it")
    source = "concertina" if kind == "jsonl" else kind
    return [_add_source_metadata(conversation, source) for conversation in conversations]


def _parse_as_format(data: bytes, kind: str) -> list[ImportedConversation]:
    if kind == "jsonl":
        return jsonl.parse_jsonl_conversation(data)
    texts = _split_outermost_values(data)
    if kind == "chatgpt":
        return chatgpt.parse_chatgpt_export(texts)
    if kind == "langchain":
        values = [decode_json(raw, where, "a LangChain message") for where, raw in texts]
        return langchain.parse_langchain_dump(values[0] if _decode_fields(data) is not None else values)
    if data[:1] == b"[" and texts and "role" in (_decode_fields(texts[0][1]) or ()):
        return openai.parse_bare_message_array(data)
    return openai.parse_openai_histories(texts)


def _add_source_metadata(conversation: ImportedConversation, source: str) -> ImportedConversation:
    metadata = add_metadata_pair(conversation.metadata, TITLE, conversation.title)
    return msgspec.structs.replace(conversation, metadata=add_metadata_pair(metadata, IMPORTED_FROM, source))


def _detect_format(data: bytes) -> str:
    """Returns the format of a file, detected by its first object."""
    root_fields = _decode_fields(data)
    if root_fields is not None:
        return _detect_object_format(root_fields, "")
    if _begins_with_items(data):
        return "jsonl"
    texts = _split_outermost_values(data)
    location, first = texts[0] if texts else ("", b"")
    fields = _decode_fields(first)
    if fields is not None:
        return "openai" if data[:1] == b"[" and "role" in fields else _detect_object_format(fields, location)
    if data[:1] == b"[" and first[:1] == b"[":
        return "langchain"
    raise invalid_file_error(location, EXPECTED)


def _begins_with_items(data: bytes) -> bool:
    """Returns whether the first of several lines is an array: the Responses items of a message."""
    line, _, rest = data.partition(b"\n")
    if line[:1] != b"[" or not rest:
        return False
    try:
        return bool(_decode_array(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _detect_object_format(fields: Fields, location: str) -> str:
    """Returns the format whose fields an object has.

    Raises:
        InvalidRequest: the object has the fields of no known format.
    """
    # The order matters: `messages` and `role` occur in several formats, so the more specific signs come first.
    if "mapping" in fields:
        return "chatgpt"
    if _is_langchain_dump(fields):
        return "langchain"
    if "messages" in fields:
        return "langchain" if _contains_langchain_dumps(fields["messages"]) else "openai"
    if "role" in fields:
        return "jsonl"
    if any(_contains_langchain_dumps(history) for history in fields.values()):
        return "langchain"
    raise invalid_file_error(location, EXPECTED)


def _is_langchain_dump(fields: Fields) -> bool:
    return "role" not in fields and ("lc" in fields or ("type" in fields and "data" in fields))


def _contains_langchain_dumps(raw: bytes | msgspec.Raw) -> bool:
    """Returns whether a value is an array of LangChain's dumped messages, or a history with such an array."""
    fields = _decode_fields(raw)
    if fields is not None:
        return "lc" in fields or ("messages" in fields and _contains_langchain_dumps(fields["messages"]))
    try:
        first_elements = _decode_array(raw)[:1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(first_elements) and _is_langchain_dump(_decode_fields(first_elements[0]) or {})


def _decode_fields(raw: bytes | msgspec.Raw) -> Fields | None:
    """Returns the undecoded fields of a JSON object; None for anything else."""
    try:
        return _decode_object(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _split_outermost_values(data: bytes) -> Sequence[tuple[str, bytes]]:
    """Returns the outermost values of a file, each after its location for errors: the elements of an array, the one
    object (its location is empty), or the lines."""
    if data[:1] == b"[":
        try:
            return [(f"[{index}]", bytes(raw)) for index, raw in enumerate(_decode_array(data))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid_file_error("", f"a JSON array ({error})") from error
    return list(jsonl.split_nonblank_lines(data)) if _decode_fields(data) is None else [("", data)]
