"""Bodies that a server compresses although it was not asked to: gzip and deflate, in pieces, off the event loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from app.errors import UpstreamUnavailable
from app.upstream.http.client import BODY_LIMIT_BYTES, broke_off, failed

ENCODINGS: Final = frozenset({"deflate", "gzip", "x-gzip"})
NOT_UNDONE: Final = frozenset({"br", "compress", "zstd"})
"""Content encodings that are known, asked for by nobody, and not undone."""
MOST_BYTES: Final = 1024 * 1024
"""Of what one step gives out: a few bytes may stand for a thousand times as many."""
SMALL_PIECE_BYTES: Final = 16 * 1024
"""Up to so much compressed is begun on the event loop: most pieces of a stream are smaller, and a thread costs more."""
FIRST_BYTES: Final = 64 * 1024
"""Of what the first step of a piece gives out, a fraction of a millisecond of work."""
INFLATED_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Of a compressed answer that is read whole. It is a few kilobytes on the wire, so its sender is not slowed by them."""
_RAW: Final = -zlib.MAX_WBITS
_ZLIB: Final = zlib.MAX_WBITS
_GZIP: Final = 16 + zlib.MAX_WBITS


class Inflater:
    """Undoes one content encoding.

    Args:
        encoding: one of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._bits = _ZLIB if encoding == "deflate" else _GZIP
        self._inflate = zlib.decompressobj(self._bits)
        self._has_begun = False
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What a piece stands for, in pieces of bounded size.

        Raises:
            zlib.error: it is not compressed as announced.
        """
        if not self._has_begun and piece:
            self._begin(piece)
        self._rest, most_bytes = piece, FIRST_BYTES
        while self._rest:
            inflated = self._inflate.decompress(self._rest, most_bytes)
            self._rest, most_bytes = self._inflate.unconsumed_tail, MOST_BYTES
            if self._inflate.eof and (rest := self._inflate.unused_data):
                self._rest = rest
                self._inflate = zlib.decompressobj(self._bits)  # RFC 1952, 2.2: a file may have several members
            if inflated:
                yield inflated

    @property
    def has_more(self) -> bool:
        """Whether the last piece stands for more than was given out."""
        return bool(self._rest)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self._inflate.eof or not self._has_begun

    def _begin(self, piece: bytes) -> None:
        """Some servers send `deflate` without the frame that RFC 9110, 8.4.1.2 demands."""
        self._has_begun = True
        if self._bits == _ZLIB and piece[0] & 0x0F != zlib.DEFLATED:
            self._bits = _RAW
            self._inflate = zlib.decompressobj(self._bits)


def take_encoding(headers: dict[str, str], name: str) -> str:
    """Take the content encoding out of an answer's headers, with the length that is no longer true.

    Returns:
        One of `ENCODINGS`; empty where there is nothing to undo.

    Raises:
        UpstreamUnavailable: the body is encoded in a way that nobody asked for and that is not undone.
    """
    if "content-encoding" not in headers:
        return ""
    encoding = headers.pop("content-encoding").strip().lower()
    headers.pop("content-length", None)
    if encoding in NOT_UNDONE:
        raise failed(name, f"its answer is encoded as {encoding!r} unasked")
    return encoding if encoding in ENCODINGS else ""


async def inflate_pieces(pieces: AsyncIterator[bytes], encoding: str, name: str) -> AsyncIterator[bytes]:
    """A compressed body in pieces. The event loop does no more of it than the beginning of a small piece.

    Args:
        encoding: one of `ENCODINGS`.
        name: of the provider.

    Raises:
        UpstreamUnavailable: it is not compressed as announced, breaks off, or stands for too much; or as iterating
            raises.
    """
    inflater = Inflater(encoding)
    left_bytes = BODY_LIMIT_BYTES
    try:
        async for piece in pieces:
            steps = inflater.feed(piece)
            inflated = (
                next(steps, b"") if len(piece) <= SMALL_PIECE_BYTES else await asyncio.to_thread(next, steps, b"")
            )
            while inflated:
                left_bytes -= len(inflated)
                if left_bytes < 0:
                    raise inflates_too_far(name, BODY_LIMIT_BYTES)
                yield inflated
                inflated = await asyncio.to_thread(next, steps, b"") if inflater.has_more else b""
    except zlib.error as error:
        raise broke_off(name) from error
    if not inflater.is_whole:
        raise broke_off(name)


async def read_inflated(pieces: AsyncIterator[bytes], name: str) -> bytes:
    """An inflated body as a whole.

    Raises:
        UpstreamUnavailable: it is longer than `INFLATED_LIMIT_BYTES`; or as iterating raises.
    """
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > INFLATED_LIMIT_BYTES:
            raise inflates_too_far(name, INFLATED_LIMIT_BYTES)
    return await asyncio.to_thread(b"".join, parts) if size > MOST_BYTES else b"".join(parts)


def inflates_too_far(name: str, limit_bytes: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"Provider {name!r} sent a compressed answer of more than {limit_bytes} bytes.",
        hint="The gateway asks for answers that are not compressed: have the provider, or a proxy before it, do so.",
    )
