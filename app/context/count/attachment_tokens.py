"""What audio and files cost: estimates from their length. Only a header is decoded, or a text that is counted."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final

from app.context.count.image_tokens import decoded_start

AUDIO_TOKENS_PER_SECOND: Final = 10
"""Of a user: one token per 100 ms (OpenAI, "Managing costs", Realtime API)."""
COMPRESSED_BYTES_PER_SECOND: Final = 8_000
"""Assumed for anything but WAV: speech at 64 kbit/s."""
ANSWER_AUDIO_TOKENS: Final = 200
"""An earlier spoken answer named by its id: ten seconds, at one token per 50 ms (same source)."""

PAGE_TOKENS: Final = 1_500
"""A PDF page goes to the model as its text and as an image (OpenAI, "File inputs"): some 500 words and four tiles."""
PAGE_BYTES: Final = 50_000
MAX_PAGES: Final = 100
ASSUMED_FILE_TOKENS: Final = 5 * PAGE_TOKENS
"""A file named by its id, of unknown size."""

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/yaml")


def audio_tokens(audio: dict[str, Any]) -> int:
    """Tokens of `input_audio`: its duration by the WAV header, otherwise by its length."""
    data = audio.get("data")
    if not isinstance(data, str):
        return ANSWER_AUDIO_TOKENS
    seconds = _decoded_bytes(len(data)) / _bytes_per_second(data)
    return max(1, math.ceil(seconds * AUDIO_TOKENS_PER_SECOND))


def file_tokens(file: dict[str, Any], count: Callable[[str], int]) -> int:
    """Tokens of a `file` part: a text file by its text, any other by the pages it may have."""
    data = file.get("file_data")
    if not isinstance(data, str):
        return ASSUMED_FILE_TOKENS
    head, comma, _ = data[:200].partition(",")
    start = len(head) + 1 if comma else 0
    if is_text_file(file):
        return count(decoded_start(data, start, len(data)).decode("utf-8", "replace"))
    pages = math.ceil(_decoded_bytes(len(data) - start) / PAGE_BYTES)
    return PAGE_TOKENS * min(max(1, pages), MAX_PAGES)


def is_text_file(file: dict[str, Any]) -> bool:
    """Whether a `file` part brings text, which is counted as such."""
    data = file.get("file_data")
    return isinstance(data, str) and data[:200].lower().startswith(tuple(f"data:{kind}" for kind in _TEXT_TYPES))


def _decoded_bytes(base64_chars: int) -> int:
    return base64_chars * 3 // 4


def _bytes_per_second(data: str) -> int:
    header = decoded_start(data, 0, 64)
    if header.startswith(b"RIFF") and header[8:16] == b"WAVEfmt " and len(header) >= 32:
        (rate,) = struct.unpack_from("<I", header, 28)
        return rate or COMPRESSED_BYTES_PER_SECOND
    return COMPRESSED_BYTES_PER_SECOND
