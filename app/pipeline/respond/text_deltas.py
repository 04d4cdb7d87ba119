"""Chunks of a stream that differ from one before them in nothing but their text, which is what nearly all of them do.

They are recognised by their bytes, any number at a time, and never decoded one by one. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import orjson

from app.pipeline.respond.stream_frames import spliced

_CONTENT: Final = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_OF_A_PLAIN_DELTA: Final = {"content", "role"}
_PROBE: Final = "x"


class Taken(msgspec.Struct, frozen=True):
    """What was recognised at the beginning of a piece.

    Attributes:
        frames: the chunks, with our fields.
        rest: what follows them in the piece.
    """

    text: str
    chunks: int
    frames: bytes
    rest: bytes


class Alike:
    """The bytes that chunks have in common.

    Args:
        before, after: those before a chunk's text and behind it, in an event of its own.
        fields: ours, for each chunk.
    """

    __slots__ = ("_after", "_after_with_ours", "_before", "_between")

    def __init__(self, before: bytes, after: bytes, fields: bytes) -> None:
        self._before = b"data: " + before
        self._after = after + b"\n\n"
        self._after_with_ours = spliced(after, fields) + b"\n\n"
        self._between = self._after + self._before

    def taken(self, piece: bytes) -> Taken | None:
        """As many chunks of this kind as a piece begins with; None if they cannot be told by their bytes alone."""
        before, after = self._before, self._after
        end = piece.rfind(after)
        if end < 0 or not piece.startswith(before):
            return None
        inside, past = piece[len(before) : end], end + len(after)
        rest = b"" if past == len(piece) else piece[past:]
        try:
            if len(inside) <= len(self._between):
                return Taken(orjson.loads(b'"%b"' % inside), 1, piece[:end] + self._after_with_ours, rest)
            texts = inside.split(self._between)
            text = _joined(texts)
        except ValueError:
            return None
        return Taken(text, len(texts), piece[:past].replace(after, self._after_with_ours), rest)


def _joined(texts: list[bytes]) -> str:
    """What the insides of JSON strings come to, one behind the other.

    Raises:
        ValueError: one of them is no such thing.
    """
    joined = b"".join(texts)
    if joined.isascii() and (b"\\" not in joined or _ends_no_escape_late(texts, joined)):
        return str(orjson.loads(b'"%b"' % joined))
    return "".join([orjson.loads(b'"%b"' % text) for text in texts])


def _ends_no_escape_late(texts: list[bytes], joined: bytes) -> bool:
    """Whether no escape can reach from one text into the next."""
    return b"\\u" not in joined and b"\\\n" not in b"\n".join(texts)


def tells_text(data: bytes) -> bool:
    """Whether a chunk may have to do with text at all."""
    return _CONTENT.search(data) is not None


def alike(data: bytes, fields: bytes) -> Alike | None:
    """What later chunks may have in common with this one; None if there is more to it than text of choice 0.

    Args:
        data: of the event that brought it.
        fields: ours, as they are spliced in.
    """
    place = _CONTENT.search(data)
    if place is None or data[:1] != b"{" or data[-1:] != b"}" or b"\n" in data:
        return None
    before, after = data[: place.start(1)], data[place.end(1) :]
    try:
        chunk, probe = orjson.loads(data), orjson.loads(b"%b%b%b" % (before, _PROBE.encode(), after))
    except orjson.JSONDecodeError:
        return None
    delta = _plain_delta(chunk)
    if delta is None:
        return None
    delta["content"] = _PROBE
    return Alike(before, after, fields) if chunk == probe else None


def _plain_delta(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The delta of a chunk that only adds text to choice 0, and tells nothing else that anybody would want to know."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    if chunk.get("object") == "error" or any(chunk.get(name) for name in ("error", "usage", "x_groq")):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index", 0) != 0 or choice.get("finish_reason") or choice.get("message") is not None:
        return None
    if not isinstance(delta, dict) or not isinstance(delta.get("content"), str):
        return None
    return delta if {name for name, value in delta.items() if value is not None} <= _OF_A_PLAIN_DELTA else None
