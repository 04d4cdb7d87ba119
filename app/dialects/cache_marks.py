"""Marks in a prompt up to which a provider keeps it in its cache: where they stand, and how OpenAI's protocols write
them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import orjson

from app.dialects.request_body import decode_body_fields, encode_fields

BREAKPOINT: Final = b'"prompt_cache_breakpoint":{"mode":"explicit"}'
OUTPUTS_WITH_PARTS: Final = (b'"function_call_output"', b'"custom_tool_call_output"')
EMPTY_TEXT_BYTES: Final = 2
"""An empty text may have no mark."""
INPUT_PART_TYPES: Final = frozenset(
    {"text", "image_url", "input_audio", "file", "input_text", "input_image", "input_file"}
)
"""Types of parts that may have a breakpoint: those of the models' inputs."""
TOOLS_INDEX: Final = -1
"""Stands for the tools, which are before the first message, in `CacheMarks`."""

_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class CacheMark(msgspec.Struct, frozen=True):
    """A mark at the end of a message."""

    text_ends: tuple[int, ...] = ()
    """Where the message's text is cut into parts, in characters; the last is its length. Each part can have a mark."""
    count: int = 1
    """How many of the last parts are marked."""


CacheMarks = Mapping[int, CacheMark]
"""Marks by the index of their message in the view."""
NO_CACHE_MARKS: Final[CacheMarks] = {}


def split_text(text: str, mark: CacheMark) -> list[str]:
    """Returns the parts into which a mark cuts a text; the whole text if the mark is not made for it."""
    if not mark.text_ends or mark.text_ends[-1] != len(text):
        return [text]
    return [text[start:end] for start, end in pairwise((0, *mark.text_ends))]


def add_member(raw_object: bytes, member: bytes) -> bytes:
    """Returns the JSON text of an object that is not empty with one more member. What it has keeps its bytes."""
    return raw_object.rstrip()[:-1] + b"," + member + b"}"


def add_breakpoints(raw: bytes, mark: CacheMark, text_type: str = "text") -> bytes:
    """Returns a chat message, or an item of the Responses API, with breakpoints in its last parts. One without a part
    that may have a breakpoint keeps its bytes.

    Args:
        text_type: of the parts that stand for a plain text; `input_text` in items.
    """
    members = {name: bytes(value) for name, value in decode_body_fields(raw).items()}
    is_answer_item = text_type != "text" and members.get("role") == b'"assistant"'
    field = "output" if members.get("type") in OUTPUTS_WITH_PARTS else "content"
    content = b"null" if is_answer_item else members.get(field, b"null")
    if content[:1] == b'"' and len(content) > EMPTY_TEXT_BYTES:
        parts = [orjson.dumps({"type": text_type, "text": text}) for text in split_text(orjson.loads(content), mark)]
    else:
        parts = [bytes(part) for part in _decode_array(content)] if content[:1] == b"[" else []
    places = [at for at, part in enumerate(parts) if part[:1] == b"{" and _read_type(part) in INPUT_PART_TYPES]
    for at in places[-mark.count :]:
        parts[at] = add_member(parts[at], BREAKPOINT)
    return encode_fields({**members, field: b"[" + b",".join(parts) + b"]"}) if places else raw


def has_breakpoints(fields: Mapping[str, bytes], raws: Sequence[bytes]) -> bool:
    """Returns whether a client has set breakpoints in its messages, or wants none but its own."""
    return b'"explicit"' in bytes(fields.get("prompt_cache_options", b"")) or any(
        b'"prompt_cache_breakpoint"' in raw for raw in raws
    )


def _read_type(raw_part: bytes) -> object:
    return orjson.loads(raw_part).get("type")
