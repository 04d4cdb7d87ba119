"""Decompresses bodies that a server compressed although the gateway did not ask for it: gzip and deflate, in pieces,
off the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client_contract import call_failed_error, incomplete_answer_error

ENCODINGS: Final = frozenset({"deflate", "gzip", "x-gzip"})
UNSUPPORTED_ENCODINGS: Final = frozenset({"br", "compress", "zstd"})
"""Known content encodings that the gateway never asks for and does not decode."""
STEP_OUTPUT_BYTES: Final = 1024 * 1024
"""The most that one step yields: a few compressed bytes may stand for a thousand times as many."""
EVENT_LOOP_PIECE_BYTES: Final = 16 * 1024
"""A compressed piece up to this size is begun on the event loop: most pieces of a stream are smaller, and a thread
costs more."""
FIRST_STEP_OUTPUT_BYTES: Final = 64 * 1024
"""The most that the first step of a piece yields: a fraction of a millisecond of work."""
_RAW_DEFLATE_BITS: Final = -zlib.MAX_WBITS
_ZLIB_BITS: Final = zlib.MAX_WBITS
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class Decompressor:
    """Decodes one content encoding.

    Args:
        encoding: one of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._window_bits = _ZLIB_BITS if encoding == "deflate" else _GZIP_BITS
        self._zlib_decompressor = zlib.decompressobj(self._window_bits)
        self._has_started = False
        self._pending_input = b""

    def decompress(self, piece: bytes) -> Iterator[bytes]:
        """Yields the decompressed bytes of a piece, in pieces of bounded size.

        Raises:
            zlib.error: the piece is not compressed as announced.
        """
        if not self._has_started and piece:
            self._detect_raw_deflate(piece)
        self._pending_input, max_bytes = piece, FIRST_STEP_OUTPUT_BYTES
        while self._pending_input:
            inflated = self._zlib_decompressor.decompress(self._pending_input, max_bytes)
            self._pending_input, max_bytes = self._zlib_decompressor.unconsumed_tail, STEP_OUTPUT_BYTES
            if self._zlib_decompressor.eof and (rest := self._zlib_decompressor.unused_data):
                self._pending_input = rest
                self._zlib_decompressor = zlib.decompressobj(
                    self._window_bits
                )  # RFC 1952, 2.2: a file may have several members
            if inflated:
                yield inflated

    @property
    def has_pending_output(self) -> bool:
        """Says whether the last piece has output that was not yielded yet."""
        return bool(self._pending_input)

    @property
    def is_complete(self) -> bool:
        """Says whether the compressed data has come to its end (or never began)."""
        return self._zlib_decompressor.eof or not self._has_started

    def _detect_raw_deflate(self, piece: bytes) -> None:
        """Switches to raw deflate: some servers send `deflate` without the zlib frame that RFC 9110, 8.4.1.2
        demands.
        """
        self._has_started = True
        if self._window_bits == _ZLIB_BITS and piece[0] & 0x0F != zlib.DEFLATED:
            self._window_bits = _RAW_DEFLATE_BITS
            self._zlib_decompressor = zlib.decompressobj(self._window_bits)


def pop_content_encoding(headers: dict[str, str], provider_name: str) -> str:
    """Removes the content encoding from an answer's headers, and the length, which is that of the compressed body.

    Returns:
        One of `ENCODINGS`; empty if there is nothing to decode.

    Raises:
        UpstreamUnavailable: the body has an encoding that is not supported.
    """
    if "content-encoding" not in headers:
        return ""
    encoding = headers.pop("content-encoding").strip().lower()
    headers.pop("content-length", None)
    if encoding in UNSUPPORTED_ENCODINGS:
        raise call_failed_error(
            provider_name, f"its answer has the encoding {encoding!r}, which the request did not allow"
        )
    return encoding if encoding in ENCODINGS else ""


async def decompress_pieces(
    pieces: AsyncIterator[bytes], encoding: str, provider_name: str, limit_bytes: int
) -> AsyncIterator[bytes]:
    """Yields a compressed body in decompressed pieces. Only the beginning of a small piece is decompressed on the event
    loop.

    Args:
        pieces: the compressed body.
        encoding: one of `ENCODINGS`.
        provider_name: for error messages.
        limit_bytes: the most bytes of the decompressed body. It takes only kilobytes on the wire, so the network does
            not slow its sender down.

    Raises:
        UpstreamUnavailable: the body is not compressed as announced, breaks off, or is too long; or as iterating
            raises.
    """
    decompressor = Decompressor(encoding)
    allowed_bytes = limit_bytes
    try:
        async for piece in pieces:
            steps = decompressor.decompress(piece)
            output = (
                next(steps, b"") if len(piece) <= EVENT_LOOP_PIECE_BYTES else await asyncio.to_thread(next, steps, b"")
            )
            while output:
                allowed_bytes -= len(output)
                if allowed_bytes < 0:
                    raise decompressed_too_long_error(provider_name, limit_bytes)
                yield output
                output = await asyncio.to_thread(next, steps, b"") if decompressor.has_pending_output else b""
    except zlib.error as error:
        raise incomplete_answer_error(provider_name) from error
    if not decompressor.is_complete:
        raise incomplete_answer_error(provider_name)


def decompressed_too_long_error(provider_name: str, limit_bytes: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"Provider {provider_name!r} sent a compressed answer of more than {limit_bytes} bytes.",
        hint="The gateway asks for uncompressed answers: configure the provider, or a proxy before it, to send them.",
    )
