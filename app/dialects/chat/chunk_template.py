"""Rewrites the chunks of a stream by their bytes, without decoding each of them. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from app.dialects.chat.stream_frames import splice_fields

find_text: Final = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"').search
"""Finds a `content` string in a chunk: only a chunk that has one can yield a template."""
_PLAIN_DELTA_FIELDS: Final = {"content", "role"}
_PROBE_TEXT: Final = "x"


class ChunkTemplate:
    """The bytes that the chunks of a stream share: everything but their text.

    A piece that matches the template is rewritten without decoding each chunk as JSON.

    Args:
        before_text, after_text: the bytes of a chunk's JSON before and after its text.
        fields: our fields, which are added to each chunk.
    """

    __slots__ = ("_after_text", "_after_with_fields", "_before_text", "_between_texts")

    def __init__(self, before_text: bytes, after_text: bytes, fields: bytes) -> None:
        self._before_text = b"data: " + before_text
        self._after_text = after_text + b"\n\n"
        self._after_with_fields = splice_fields(after_text, fields) + b"\n\n"
        self._between_texts = self._after_text + self._before_text

    def match_chunks(self, piece: bytes) -> tuple[str, int, bytes, bytes] | None:
        """Matches the chunks at the beginning of a piece.

        Returns:
            The text of these chunks, joined; how many they are; these chunks with our fields; the bytes after them.
            None if the first chunk does not match, or a text is not JSON.
        """
        before_text, after_text = self._before_text, self._after_text
        # From the right: all chunks up to the last match are taken at once. Another kind of chunk in between ends up in
        # a "text", which then is not valid inside a JSON string.
        end = piece.rfind(after_text)
        if end < 0 or not piece.startswith(before_text):
            return None
        matched, match_end = piece[len(before_text) : end], end + len(after_text)
        rest = b"" if match_end == len(piece) else piece[match_end:]
        try:
            # Too short to hold the bytes between two texts, so this is one chunk, the most frequent case.
            if len(matched) <= len(self._between_texts):
                return orjson.loads(b'"%b"' % matched), 1, piece[:end] + self._after_with_fields, rest
            texts = matched.split(self._between_texts)
            text = _join_json_texts(texts)
        except ValueError:
            return None
        return text, len(texts), piece[:match_end].replace(after_text, self._after_with_fields), rest


def _join_json_texts(texts: list[bytes]) -> str:
    """Decodes the insides of JSON strings and joins the texts.

    Raises:
        ValueError: one of them is not valid inside a JSON string.
    """
    joined = b"".join(texts)
    # One decoding for all. Not for other than ASCII: bytes of one character, each invalid in its own chunk, could join
    # to a valid one.
    if joined.isascii() and (b"\\" not in joined or _has_whole_escapes(texts, joined)):
        return str(orjson.loads(b'"%b"' % joined))
    return "".join([orjson.loads(b'"%b"' % text) for text in texts])


def _has_whole_escapes(texts: list[bytes], joined: bytes) -> bool:
    """Whether no JSON escape reaches from one text into the next: then the joined text has the same value.

    `\\u` is excluded because halves of a surrogate pair in two texts would join to one character.
    """
    return b"\\u" not in joined and b"\\\n" not in b"\n".join(texts)


def build_chunk_template(data: bytes, fields: bytes) -> ChunkTemplate | None:
    """Builds the template of a chunk; None if the chunk holds more than text of choice 0.

    Args:
        data: the data of the chunk's event.
        fields: our fields, as `splice_fields` takes them.
    """
    match = find_text(data)
    if match is None or data[:1] != b"{" or data[-1:] != b"}" or b"\n" in data:
        return None
    before_text, after_text = data[: match.start(1)], data[match.end(1) :]
    try:
        chunk, probe = orjson.loads(data), orjson.loads(b"%b%b%b" % (before_text, _PROBE_TEXT.encode(), after_text))
    except orjson.JSONDecodeError:
        return None
    delta = _find_text_only_delta(chunk)
    if delta is None:
        return None
    delta["content"] = _PROBE_TEXT
    # The pattern may have found "content" elsewhere in the chunk. Replacing the text in the bytes must have the same
    # effect as replacing it in the delta.
    return ChunkTemplate(before_text, after_text, fields) if chunk == probe else None


def _find_text_only_delta(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """Finds the delta of a chunk that does nothing but add text to choice 0; None for any other chunk."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    # The collector must see each error, usage, finish reason and tool call; a matched chunk passes by without it.
    if chunk.get("object") == "error" or chunk.get("error") or chunk.get("usage") or chunk.get("x_groq"):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index", 0) != 0 or choice.get("finish_reason") or choice.get("message") is not None:
        return None
    if not isinstance(delta, dict) or not isinstance(delta.get("content"), str):
        return None
    return delta if {name for name, value in delta.items() if value is not None} <= _PLAIN_DELTA_FIELDS else None
