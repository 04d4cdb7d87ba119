"""Decodes server-sent events: bytes in, events out, incremental and pure. No JSON, no network.

The raw bytes of all events, joined, are the bytes that were fed; how these were cut into pieces makes no difference.
Line ends may be LF, CRLF or CR (WHATWG HTML, 9.2.5 "Parsing an event stream").
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from app.errors import UpstreamUnavailable

MAX_EVENT_BYTES = 16 * 1024 * 1024
DONE_DATA: Final = b"[DONE]"
"""Data of the event with which providers of OpenAI's protocols end a stream."""

_BOM = b"\xef\xbb\xbf"
_BLANK_LINE = re.compile(rb"\n[\r\n]|\r\r")
"""Matches a line end followed by another. CR LF is one line end; the second may be a CR whose LF is still to come."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: its bytes exactly as they arrived, with the blank line, and its data."""

    raw: bytes
    data: bytes | None
    """Data lines joined by LF; None if it has none (a comment, only `event:` or `retry:`, a stray blank line)."""
    name: bytes = b""
    """Value of the `event:` field."""


class SseDecoder:
    """Cuts a byte stream into events.

    Args:
        source_name: the provider's name, for error messages.
        max_event_bytes: how much is buffered while the end of an event is awaited.
    """

    __slots__ = ("_buffered", "_buffered_bytes", "_is_at_start", "_max_event_bytes", "_source_name", "_tail")

    def __init__(self, source_name: str = "upstream", *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._source_name = source_name
        self._max_event_bytes = max_event_bytes
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._tail = b""
        """The last two bytes held: a blank line may begin in them and end in the next piece."""
        self._is_at_start = True

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Returns the events that end within this piece.

        Raises:
            UpstreamUnavailable: an event is longer than `max_event_bytes`.
        """
        if not piece:
            return []
        if self._buffered:
            seam = self._tail + piece
            # Only the seam can hold the end of the event: joining the buffer for each piece would take quadratic time.
            if b"\n\n" not in seam and (b"\r" not in seam or _BLANK_LINE.search(seam) is None):
                self._buffer_piece(piece, seam)
                return []
            piece = self._drain_buffer(piece)
        # The usual case: the piece is exactly one event of one data line.
        if piece[:6] == b"data: " and piece.find(b"\n") == len(piece) - 2 and piece[-1] == 0x0A and b"\r" not in piece:
            self._is_at_start = False
            return [SseEvent(piece, piece[6:-2])]
        events, rest = self._split_events(piece)
        if rest:
            self._buffer_piece(rest, rest)
        return events

    def flush(self) -> list[SseEvent]:
        """Returns the event that was buffered when the stream ended, without its blank line; empty if there
        was none.
        """
        events, rest = self._split_events(self._drain_buffer(b""))
        if rest:
            events.append(self._parse_event(rest))
        return events

    def _buffer_piece(self, piece: bytes, seam: bytes) -> None:
        self._buffered.append(piece)
        self._buffered_bytes += len(piece)
        self._tail = seam[-2:]
        if self._buffered_bytes > self._max_event_bytes:
            raise UpstreamUnavailable(
                f"Provider {self._source_name!r} sent a stream event of more than {self._max_event_bytes} bytes."
            )

    def _drain_buffer(self, piece: bytes) -> bytes:
        self._buffered.append(piece)
        joined = b"".join(self._buffered)
        self._buffered.clear()
        self._buffered_bytes = 0
        return joined

    def _split_events(self, buffer: bytes) -> tuple[list[SseEvent], bytes]:
        events = []
        start = 0
        while (blank := _BLANK_LINE.search(buffer, start)) is not None:
            end = blank.end()
            if buffer[end - 1] == 0x0D:
                # The LF of this CR may come with the next piece.
                if end == len(buffer):
                    break
                end += buffer[end] == 0x0A
            events.append(self._parse_event(buffer[start:end]))
            start = end
        return events, buffer[start:]

    def _parse_event(self, raw: bytes) -> SseEvent:
        text = raw.removeprefix(_BOM) if self._is_at_start else raw
        self._is_at_start = False
        data: list[bytes] = []
        name = b""
        for line in text.splitlines():
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ")
        return SseEvent(raw, b"\n".join(data) if data else None, name)
