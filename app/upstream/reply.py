"""An answer on a connection of our own, on its way to whoever asked."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

from app.errors import UpstreamUnavailable
from app.upstream.base import Times
from app.upstream.client import broke_off, failed, gathered, keep_what_is_ours
from app.upstream.http1 import Connection
from app.upstream.inflate import ENCODINGS, Inflater

NOT_UNDONE: Final = frozenset({"br", "compress", "zstd"})
"""Content encodings that are known, asked for by nobody, and not undone."""


class HttpReply:
    """An answer under way; `upstream.base.Reply`.

    Args:
        connection: on which its head has come.

    Raises:
        UpstreamUnavailable: its body is encoded in a way that nobody asked for.
    """

    __slots__ = ("_connection", "_has_begun", "_inflater", "_name", "_times", "headers", "status")

    def __init__(self, connection: Connection, name: str, times: Times | None) -> None:
        self._connection: Connection | None = connection
        self._name = name
        self._times = times
        self._has_begun = False
        self._inflater: Inflater | None = None
        self.status = connection.status
        headers = connection.headers
        keep_what_is_ours(headers)
        if "content-encoding" in headers:
            self._undo(headers.pop("content-encoding").strip().lower())
            headers.pop("content-length", None)
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            UpstreamUnavailable: it broke off, took too long, or is larger than can be held.
        """
        first = b""
        if self._inflater is None:
            first = await self._next()
            if self._connection is None:
                return first
        try:
            return await gathered(self.chunks(), self._name, first)
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces, each what has come since the last. A consumer that is cancelled cuts the connection.

        Raises:
            UpstreamUnavailable: it breaks off or stays silent too long.
        """
        if self._inflater is not None:
            async for piece in self._inflated(self._inflater):
                yield piece
            return
        while piece := await self._next():
            yield piece

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if the answer has come whole, closed if not."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.let_go()

    async def _next(self) -> bytes:
        """The next piece; empty at the end, which may have come with the last."""
        connection = self._connection
        if connection is None:
            return b""
        if not connection.pieces and not connection.is_complete:
            await connection.more()
        piece = connection.take()
        if not self._has_begun:
            self._begin(connection)
        if connection.is_complete:
            self._end(connection)
        return piece

    def _begin(self, connection: Connection) -> None:
        self._has_begun = True
        if not connection.is_complete:
            connection.begin_reading()
        if self._times is not None:
            self._times.first_byte = time.monotonic()

    def _end(self, connection: Connection) -> None:
        self._connection = None
        connection.let_go()
        if self._times is not None:
            self._times.ended = time.monotonic()

    def _undo(self, encoding: str) -> None:
        if encoding in ENCODINGS:
            self._inflater = Inflater(encoding)
        elif encoding in NOT_UNDONE:
            if self._connection is not None:
                self._connection.abort()
            raise failed(self._name, f"its answer is encoded as {encoding!r} unasked")

    async def _inflated(self, inflater: Inflater) -> AsyncIterator[bytes]:
        try:
            while piece := await self._next():
                for inflated in inflater.feed(piece):
                    yield inflated
        except zlib.error as error:
            await self.aclose()
            raise broke_off(self._name) from error
        if not inflater.is_whole:
            raise broke_off(self._name)
