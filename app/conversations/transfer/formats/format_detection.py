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
    Imported,
    decoded,
    refused,
    with_note,
)

Format = Literal["auto", "jsonl", "openai", "chatgpt", "langchain"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
EXPECTED: Final = (
    "chat messages a line, objects with 'messages', conversations.json of a ChatGPT export, or a dump of LangChain "
    "messages"
)
Fields = Mapping[str, msgspec.Raw]
_as_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_as_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read(data: bytes, wanted: Format = "auto") -> list[Imported]:
    """The conversations of a file, at least one.

    Raises:
        InvalidRequest: it is not of the format that is wanted, or of none that is known; `param` names the place.
    """
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    kind = _kind(data) if wanted == "auto" else wanted
    found = _read(data, kind)
    if not found:
        raise refused("", "at least one conversation with messages in it")
    source = "concertina" if kind == "jsonl" else kind
    return [_noted(conversation, source) for conversation in found]


def _read(data: bytes, kind: str) -> list[Imported]:
    if kind == "jsonl":
        return jsonl.read(data)
    texts = _texts(data)
    if kind == "chatgpt":
        return chatgpt.read(texts)
    if kind == "langchain":
        values = [decoded(raw, where, "a LangChain message") for where, raw in texts]
        return langchain.read(values[0] if _fields(data) is not None else values)
    if data[:1] == b"[" and texts and "role" in (_fields(texts[0][1]) or ()):
        return openai.read_messages(data)
    return openai.read(texts)


def _noted(conversation: Imported, source: str) -> Imported:
    metadata = with_note(conversation.metadata, TITLE, conversation.title)
    return msgspec.structs.replace(conversation, metadata=with_note(metadata, IMPORTED_FROM, source))


def _kind(data: bytes) -> str:
    """The format of a file, by its first object."""
    whole = _fields(data)
    if whole is not None:
        return _kind_of(whole, "")
    texts = _texts(data)
    where, first = texts[0] if texts else ("", b"")
    fields = _fields(first)
    if fields is not None:
        return "openai" if data[:1] == b"[" and "role" in fields else _kind_of(fields, where)
    if data[:1] == b"[" and first[:1] == b"[":
        return "langchain"
    raise refused(where, EXPECTED)


def _kind_of(fields: Fields, where: str) -> str:
    """The format of which an object has the fields.

    Raises:
        InvalidRequest: of none.
    """
    if "mapping" in fields:
        return "chatgpt"
    if _is_dump(fields):
        return "langchain"
    if "messages" in fields:
        return "langchain" if _holds_dumps(fields["messages"]) else "openai"
    if "role" in fields:
        return "jsonl"
    if any(_holds_dumps(history) for history in fields.values()):
        return "langchain"
    raise refused(where, EXPECTED)


def _is_dump(fields: Fields) -> bool:
    return "role" not in fields and ("lc" in fields or ("type" in fields and "data" in fields))


def _holds_dumps(raw: bytes | msgspec.Raw) -> bool:
    """Whether it is an array of dumped messages, or a history that holds one."""
    fields = _fields(raw)
    if fields is not None:
        return "lc" in fields or ("messages" in fields and _holds_dumps(fields["messages"]))
    try:
        first = _as_array(raw)[:1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(first) and _is_dump(_fields(first[0]) or {})


def _fields(raw: bytes | msgspec.Raw) -> Fields | None:
    """The fields of an object, undecoded; None for anything else."""
    try:
        return _as_object(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _texts(data: bytes) -> Sequence[tuple[str, bytes]]:
    """The outermost values of a file with their places: the elements of its array, its one object (which
    has none), or its lines."""
    if data[:1] == b"[":
        try:
            return [(f"[{index}]", bytes(raw)) for index, raw in enumerate(_as_array(data))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise refused("", f"a JSON array ({error})") from error
    return list(jsonl.lines_of(data)) if _fields(data) is None else [("", data)]
