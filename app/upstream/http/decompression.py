"""Decompresses HTTP bodies in pieces: gzip, deflate, zstd and br."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import brotli

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client_contract import call_failed_error, incomplete_answer_error

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS: Final = frozenset({"br", "deflate", "gzip", "x-gzip", "zstd"})
UNSUPPORTED_ENCODINGS: Final = frozenset({"compress"})
"""Known content encodings that the gateway does not decode."""
STEP_OUTPUT_BYTES: Final = 256 * 1024
"""The most that one step yields, in less than a millisecond: a few compressed bytes may stand for a thousand times as
many."""
_GZIP_OR_ZLIB_BITS: Final = 32 + zlib.MAX_WBITS
_RAW_DEFLATE_BITS: Final = -zlib.MAX_WBITS
_LARGEST_WINDOW: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}
"""8 MiB, which each decoder of RFC 9659 supports: a frame may ask for gigabytes."""


class NotCompressedAsAnnounced(ValueError):
    """A body is not compressed as its headers say, or breaks off."""


class Decompressor:
    """Decodes one content encoding.

    Args:
        encoding: one of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder: Any = None

    def decompress(self, piece: bytes) -> Iterator[bytes]:
        """Yields the decompressed bytes of a piece, in pieces of about `STEP_OUTPUT_BYTES`.

        Raises:
            NotCompressedAsAnnounced: the piece is not compressed as announced.
        """
        try:
            yield from self._decompress_br(piece) if self._encoding == "br" else self._decompress_frames(piece)
        except (zlib.error, zstd.ZstdError, brotli.error) as error:
            raise NotCompressedAsAnnounced(str(error)) from error

    def _decompress_br(self, piece: bytes) -> Iterator[bytes]:
        decoder = self._decoder = self._decoder or brotli.Decompressor()
        if piece and decoder.is_finished():
            raise NotCompressedAsAnnounced("data after the end")
        output = decoder.process(piece, output_buffer_limit=STEP_OUTPUT_BYTES)
        while output:
            yield output
            output = b"" if decoder.is_finished() else decoder.process(b"", output_buffer_limit=STEP_OUTPUT_BYTES)

    def _decompress_frames(self, piece: bytes) -> Iterator[bytes]:
        """Yields what a piece of zlib's or zstd's data holds. Both may have several frames (RFC 1952, 2.2; RFC 8878,
        3.1)."""
        has_more = bool(piece)
        while has_more:
            if self._decoder is None or self._decoder.eof:
                self._decoder = self._begin_frame(piece)
            decoder = self._decoder
            if output := decoder.decompress(piece, STEP_OUTPUT_BYTES):
                yield output
            piece = decoder.unused_data if self._encoding == "zstd" or decoder.eof else decoder.unconsumed_tail
            has_more = bool(piece) or (self._encoding == "zstd" and not decoder.eof and not decoder.needs_input)

    def _begin_frame(self, piece: bytes) -> Any:
        if self._encoding == "zstd":
            return zstd.ZstdDecompressor(options=_LARGEST_WINDOW)
        # Some servers send `deflate` without the zlib frame that RFC 9110, 8.4.1.2 demands.
        is_raw = self._encoding == "deflate" and self._decoder is None and piece[0] & 15 != 8
        return zlib.decompressobj(_RAW_DEFLATE_BITS if is_raw else _GZIP_OR_ZLIB_BITS)

    @property
    def is_complete(self) -> bool:
        """Says whether the compressed data has come to its end (or never began)."""
        if self._decoder is None:
            return True
        return bool(self._decoder.is_finished() if self._encoding == "br" else self._decoder.eof)


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
    """Yields a compressed answer in decompressed pieces. Other tasks run between them.

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
    except NotCompressedAsAnnounced as error:
        raise incomplete_answer_error(provider_name) from error
    if not decompressor.is_complete:
        raise incomplete_answer_error(provider_name)
