"""Decompresses bodies that a server compressed although the gateway did not ask for it: gzip and deflate, in pieces."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client_contract import call_failed_error, incomplete_answer_error

ENCODINGS: Final = frozenset({"deflate", "gzip", "x-gzip"})
UNSUPPORTED_ENCODINGS: Final = frozenset({"br", "compress", "zstd"})
"""Known content encodings that the gateway never asks for and does not decode."""
STEP_OUTPUT_BYTES: Final = 256 * 1024
"""The most that one step yields, in less than a millisecond: a few compressed bytes may stand for a thousand times as
many."""
_GZIP_OR_ZLIB_BITS: Final = 32 + zlib.MAX_WBITS
_RAW_DEFLATE_BITS: Final = -zlib.MAX_WBITS


class Decompressor:
    """Decodes one content encoding.

    Args:
        encoding: one of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._window_bits = _GZIP_OR_ZLIB_BITS
        self._zlib_decompressor: Any = None

    def decompress(self, piece: bytes) -> Iterator[bytes]:
        """Yields the decompressed bytes of a piece, in pieces of at most `STEP_OUTPUT_BYTES`.

        Raises:
            zlib.error: the piece is not compressed as announced.
        """
        # Some servers send `deflate` without the zlib frame that RFC 9110, 8.4.1.2 demands.
        if self._zlib_decompressor is None and self._encoding == "deflate" and piece[:1] and piece[0] & 15 != 8:
            self._window_bits = _RAW_DEFLATE_BITS
        while piece:
            if self._zlib_decompressor is None or self._zlib_decompressor.eof:  # RFC 1952, 2.2: there may be several
                self._zlib_decompressor = zlib.decompressobj(self._window_bits)
            output = self._zlib_decompressor.decompress(piece, STEP_OUTPUT_BYTES)
            piece = self._zlib_decompressor.unconsumed_tail or self._zlib_decompressor.unused_data
            if output:
                yield output

    @property
    def is_complete(self) -> bool:
        """Says whether the compressed data has come to its end (or never began)."""
        return self._zlib_decompressor is None or self._zlib_decompressor.eof


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
    """Yields a compressed body in decompressed pieces. Other tasks run between them.

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
            for output in decompressor.decompress(piece):
                allowed_bytes -= len(output)
                if allowed_bytes < 0:
                    raise UpstreamUnavailable(
                        f"Provider {provider_name!r} sent a compressed answer of more than {limit_bytes} bytes.",
                        hint="The gateway asks for uncompressed answers: configure the provider, or a proxy before it, "
                        "to send them.",
                    )
                yield output
                await asyncio.sleep(0)
    except zlib.error as error:
        raise incomplete_answer_error(provider_name) from error
    if not decompressor.is_complete:
        raise incomplete_answer_error(provider_name)
