"""Which format a file has, told by its shape, and reading it by that. Pure.

The outermost level is cut apart without decoding what is inside, so that a file of many megabytes is decoded piece by
piece and other threads have their turn between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from app.conversations.transfer.formats import chatgpt, jsonl, langchain, openai
from app.conversations.transfer.formats.imported_history import (
    IMPORTED_FROM,
    TITLE,
    ImportedConversation,
    add_metadata,
    decode_json,
    format_error,
)

Format = Literal["auto", "jsonl", "openai", "chatgpt", "langchain"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
EXPECTED: Final = (
    "chat messages a line, objects with 'messages', conversations.json of a ChatGPT export, or a dump of LangChain "
    "messages"
)
Fields = Mapping[str, msgspec.Raw]
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse_file(data: bytes, file_format: Format = "auto") -> list[ImportedConversation]:
    """The conversations of a file, at least one.

    Raises:
        InvalidRequest: it is not of the format that is wanted, or of none that is known; `param` names the place.
    """
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    kind = _detect_format(data) if file_format == "auto" else file_format
    found = _parse_format(data, kind)
    if not found:
        raise format_error("", "at least one conversation with messages in it")
    source = "concertina" if kind == "jsonl" else kind
    return [_add_source_metadata(conversation, source) for conversation in found]


def _parse_format(data: bytes, kind: str) -> list[ImportedConversation]:
    if kind == "jsonl":
        return jsonl.parse_lines(data)
    texts = _split_values(data)
    if kind == "chatgpt":
        return chatgpt.parse_export(texts)
    if kind == "langchain":
        values = [decode_json(raw, where, "a LangChain message") for where, raw in texts]
        return langchain.parse_dump(values[0] if _decode_fields(data) is not None else values)
    if data[:1] == b"[" and texts and "role" in (_decode_fields(texts[0][1]) or ()):
        return openai.parse_bare_messages(data)
    return openai.parse_histories(texts)


def _add_source_metadata(conversation: ImportedConversation, source: str) -> ImportedConversation:
    metadata = add_metadata(conversation.metadata, TITLE, conversation.title)
    return msgspec.structs.replace(conversation, metadata=add_metadata(metadata, IMPORTED_FROM, source))


def _detect_format(data: bytes) -> str:
    """The format of a file, by its first object."""
    whole = _decode_fields(data)
    if whole is not None:
        return _detect_object_format(whole, "")
    texts = _split_values(data)
    where, first = texts[0] if texts else ("", b"")
    fields = _decode_fields(first)
    if fields is not None:
        return "openai" if data[:1] == b"[" and "role" in fields else _detect_object_format(fields, where)
    if data[:1] == b"[" and first[:1] == b"[":
        return "langchain"
    raise format_error(where, EXPECTED)


def _detect_object_format(fields: Fields, where: str) -> str:
    """The format of which an object has the fields.

    Raises:
        InvalidRequest: of none.
    """
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
    raise format_error(where, EXPECTED)


def _is_langchain_dump(fields: Fields) -> bool:
    return "role" not in fields and ("lc" in fields or ("type" in fields and "data" in fields))


def _contains_langchain_dumps(raw: bytes | msgspec.Raw) -> bool:
    """Whether it is an array of dumped messages, or a history that holds one."""
    fields = _decode_fields(raw)
    if fields is not None:
        return "lc" in fields or ("messages" in fields and _contains_langchain_dumps(fields["messages"]))
    try:
        first = _decode_array(raw)[:1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(first) and _is_langchain_dump(_decode_fields(first[0]) or {})


def _decode_fields(raw: bytes | msgspec.Raw) -> Fields | None:
    """The fields of an object, undecoded; None for anything else."""
    try:
        return _decode_object(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _split_values(data: bytes) -> Sequence[tuple[str, bytes]]:
    """The outermost values of a file with their places: the elements of its array, its one object (which
    has none), or its lines."""
    if data[:1] == b"[":
        try:
            return [(f"[{index}]", bytes(raw)) for index, raw in enumerate(_decode_array(data))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise format_error("", f"a JSON array ({error})") from error
    return list(jsonl.split_lines(data)) if _decode_fields(data) is None else [("", data)]
