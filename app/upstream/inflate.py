"""Bodies that a server compresses although it was not asked to: gzip and deflate, piece by piece. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

ENCODINGS: Final = frozenset({"deflate", "gzip", "x-gzip"})
MOST_BYTES: Final = 1024 * 1024
"""Of what one step gives out: a few bytes may stand for a thousand times as many."""
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

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What a piece stands for, in pieces of bounded size.

        Raises:
            zlib.error: it is not compressed as announced.
        """
        if not self._has_begun and piece:
            self._begin(piece)
        while piece:
            if inflated := self._inflate.decompress(piece, MOST_BYTES):
                yield inflated
            piece = self._inflate.unconsumed_tail
            if self._inflate.eof and (piece := self._inflate.unused_data):
                self._inflate = zlib.decompressobj(self._bits)  # RFC 1952, 2.2: a file may have several members

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
