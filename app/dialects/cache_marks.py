"""Marks in a prompt up to which a provider keeps it in its cache: where they stand, and how OpenAI's protocols write
them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import orjson

BREAKPOINT_FIELD: Final = "prompt_cache_breakpoint"
BREAKPOINT: Final = {"mode": "explicit"}
INPUT_PART_TYPES: Final = frozenset(
    {"text", "image_url", "input_audio", "file", "input_text", "input_image", "input_file"}
)
"""Types of parts that may have a breakpoint: those of the models' inputs."""
TOOLS_INDEX: Final = -1
"""Stands for the tools, which are before the first message, in `CacheMarks`."""


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


def add_breakpoints(raw: bytes, mark: CacheMark) -> bytes:
    """Returns a chat message, or an item of the Responses API, with breakpoints in its last parts. One without a part
    that may have a breakpoint keeps its bytes."""
    body: dict[str, Any] = orjson.loads(raw)
    field = "output" if "output" in body else "content"
    content = body.get(field)
    if isinstance(content, str) and content and body.get("type") in (None, "message", "function_call_output"):
        kind = "input_text" if "type" in body else "text"
        content = [{"type": kind, "text": text} for text in split_text(content, mark)]
    parts = list(content) if isinstance(content, list) else []
    places = [at for at, part in enumerate(parts) if isinstance(part, dict) and part.get("type") in INPUT_PART_TYPES]
    if not places:
        return raw
    for at in places[-mark.count :]:
        parts[at] = {**parts[at], BREAKPOINT_FIELD: BREAKPOINT}
    return orjson.dumps({**body, field: parts})


def has_breakpoints(fields: Mapping[str, bytes], raws: Sequence[bytes]) -> bool:
    """Returns whether a client has set breakpoints in its messages, or wants none but its own."""
    return b'"explicit"' in bytes(fields.get("prompt_cache_options", b"")) or any(
        b'"prompt_cache_breakpoint"' in raw for raw in raws
    )
