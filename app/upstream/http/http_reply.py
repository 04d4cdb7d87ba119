"""An answer on a connection of our own, on its way to whoever asked."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping

from app.errors import UpstreamUnavailable
from app.upstream.http.client import gathered, keep_what_is_ours
from app.upstream.http.http1_connection import Connection
from app.upstream.http.inflate import inflate_pieces, read_inflated, take_encoding
from app.upstream.provider import Times


class HttpReply:
    """An answer under way; `upstream.provider.Reply`.

    Args:
        connection: on which its head has come.

    Raises:
        UpstreamUnavailable: its body is encoded in a way that nobody asked for.
    """

    __slots__ = ("_connection", "_encoding", "_has_begun", "_name", "_times", "headers", "status")

    def __init__(self, connection: Connection, name: str, times: Times | None) -> None:
        self._connection: Connection | None = connection
        self._name = name
        self._times = times
        self._has_begun = False
        self.status = connection.status
        headers = connection.headers
        keep_what_is_ours(headers)
        try:
            self._encoding = take_encoding(headers, name)
        except UpstreamUnavailable:
            connection.abort()
            raise
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            UpstreamUnavailable: it broke off, took too long, or is larger than can be held.
        """
        try:
            if self._encoding:
                return await read_inflated(self.chunks(), self._name)
            first = await self._next()
            return first if self._connection is None else await gathered(self.chunks(), self._name, first)
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces, each what has come since the last. A consumer that is cancelled cuts the connection.

        Raises:
            UpstreamUnavailable: it breaks off or stays silent too long.
        """
        if not self._encoding:
            while piece := await self._next():
                yield piece
            return
        try:
            async for piece in inflate_pieces(self._pieces(), self._encoding, self._name):
                yield piece
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if the answer has come whole, closed if not."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.let_go()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body as it is sent."""
        while piece := await self._next():
            yield piece

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
