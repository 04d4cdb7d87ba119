"""The client that calls go through unless there is a proxy: connections of our own, kept as long as they are of use."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import SplitResult

from app.errors import UpstreamUnavailable
from app.upstream.http.client import IDLE_CONNECTION_SECONDS, Head, Timeouts, gathered, keep_what_is_ours
from app.upstream.http.dial import Dialer
from app.upstream.http.http1_connection import Connection
from app.upstream.http.inflate import inflate_pieces, read_inflated, take_encoding
from app.upstream.http.timeouts import Watches
from app.upstream.provider import ConnectionDropped, Times

REPEATABLE: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
"""Methods that may be sent again when a kept connection turns out to be closed (RFC 9110, 9.2.2). A POST may not by
itself: whether it was carried out is not known."""
CLOSE_SECONDS: Final = 1.0


class DirectClient:
    """Implements `upstream.http.client.Client`.

    Args:
        name: of the provider.
        url: where its server is.
        tls: None: the system's roots.
    """

    def __init__(self, name: str, url: SplitResult, timeouts: Timeouts, tls: ssl.SSLContext | None) -> None:
        self._name = name
        self._timeouts = timeouts
        self._url = url
        self._tls = tls
        self._watches = Watches()
        self._dialer: Dialer | None = None
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """The longest idle first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    async def send(self, head: Head, body: bytes, ends_at: float | None, times: Times | None) -> HttpReply:
        """See `upstream.http.client.Client`."""
        if self._idle:
            connection, _ = self._idle.popitem()
            try:
                await connection.ask(head, body, ends_at)
                return HttpReply(connection, self._name, times)
            except ConnectionDropped:
                if head.method not in REPEATABLE:
                    raise
        connection = await self._opened_dialer().dial(ends_at)
        if connection.is_open:
            self._open.add(connection)
        await connection.ask(head, body, ends_at)
        return HttpReply(connection, self._name, times)

    async def aclose(self) -> None:
        """Close all connections, those under way too."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._watches.close()
        self._dialer = None
        if not self._open:
            return
        self._all_closed = asyncio.Event()
        for connection in tuple(self._open):
            connection.abort()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._all_closed.wait()
        except TimeoutError:
            return

    def _opened_dialer(self) -> Dialer:
        if self._dialer is None:
            self._dialer = Dialer(self._name, self._url, self._tls, self._timeouts.connect_seconds, self._new)
        return self._dialer

    def _new(self) -> Connection:
        return Connection(self._name, self._timeouts, self._watches, self._keep, self._forget)

    def _keep(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[connection] = None
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_CONNECTION_SECONDS, self._close_idle)

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if self._all_closed is not None and not self._open:
            self._all_closed.set()

    def _close_idle(self) -> None:
        """Close the connections that nobody has needed for long, and look again when the next one may be due."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        while self._idle:
            oldest = next(iter(self._idle))
            due = oldest.idle_since + IDLE_CONNECTION_SECONDS
            if due > loop.time():
                self._sweep = loop.call_at(due, self._close_idle)
                return
            del self._idle[oldest]
            oldest.abort()


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
