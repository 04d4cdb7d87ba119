"""The client for servers that are reached without a proxy. It keeps its own connections open for further calls
(decision 25).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import SplitResult

from app.errors import UpstreamUnavailable
from app.upstream.http.decompression import decompress_pieces, pop_content_encoding
from app.upstream.http.dialer import Dialer
from app.upstream.http.http1_connection import Http1Connection
from app.upstream.http.http_client_contract import (
    IDEMPOTENT_METHODS,
    IDLE_CONNECTION_SECONDS,
    HttpTimeouts,
    RequestHead,
    answer_too_long_error,
    drop_connection_headers,
    read_whole_body,
)
from app.upstream.provider_contract import ANSWER_LIMIT_BYTES, CallTimes, ConnectionDropped

CLOSE_TIMEOUT_SECONDS: Final = 1.0


class DirectClient:
    """Implements `upstream.http.http_client_contract.HttpClient`.

    Args:
        provider_name: for error messages.
        url: the server's address.
        timeouts: time limits of its calls.
        tls: None: the system's roots.
    """

    def __init__(
        self, provider_name: str, url: SplitResult, timeouts: HttpTimeouts, tls: ssl.SSLContext | None
    ) -> None:
        self._provider_name = provider_name
        self._timeouts = timeouts
        self._url = url
        self._tls = tls
        self._dialer: Dialer | None = None
        self._open_connections: set[Http1Connection] = set()
        self._idle_connections: dict[Http1Connection, None] = {}
        """The longest idle one first."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    async def send(
        self,
        head: RequestHead,
        body: bytes,
        deadline: float | None,
        times: CallTimes | None,
        *,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> Http1Reply:
        """See `upstream.http.http_client_contract.HttpClient`."""
        if self._idle_connections:
            # The connection that was used last is the least likely to have been closed by the server.
            connection, _ = self._idle_connections.popitem()
            try:
                await connection.send(head, body, deadline)
                return Http1Reply(connection, self._provider_name, times, limit_bytes)
            # The server closed the idle connection: try once more on a new one.
            except ConnectionDropped:
                if head.method not in IDEMPOTENT_METHODS:
                    raise
        connection = await self._ensure_dialer().dial(deadline)
        # The server may have closed it already; a lost connection must not be added after its removal.
        if connection.is_open:
            self._open_connections.add(connection)
        await connection.send(head, body, deadline)
        return Http1Reply(connection, self._provider_name, times, limit_bytes)

    async def aclose(self) -> None:
        """Closes all connections, including those with calls under way."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._dialer = None
        if not self._open_connections:
            return
        self._all_closed = asyncio.Event()
        for connection in tuple(self._open_connections):
            connection.abort()
        try:
            # Aborted transports close in a later loop iteration. Wait for that, but never hold up a shutdown.
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._all_closed.wait()
        except TimeoutError:
            return

    def _ensure_dialer(self) -> Dialer:
        if self._dialer is None:
            self._dialer = Dialer(
                self._provider_name, self._url, self._tls, self._timeouts.connect_seconds, self._make_connection
            )
        return self._dialer

    def _make_connection(self) -> Http1Connection:
        return Http1Connection(self._provider_name, self._timeouts, self._return_to_pool, self._remove_connection)

    def _return_to_pool(self, connection: Http1Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle_connections[connection] = None
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_CONNECTION_SECONDS, self._close_idle_connections)

    def _remove_connection(self, connection: Http1Connection) -> None:
        self._open_connections.discard(connection)
        self._idle_connections.pop(connection, None)
        if self._all_closed is not None and not self._open_connections:
            self._all_closed.set()

    def _close_idle_connections(self) -> None:
        """Closes connections that were idle too long, and schedules the next check."""
        self._idle_timer = None
        loop = asyncio.get_running_loop()
        while self._idle_connections:
            oldest = next(iter(self._idle_connections))
            due = oldest.idle_since + IDLE_CONNECTION_SECONDS
            if due > loop.time():
                self._idle_timer = loop.call_at(due, self._close_idle_connections)
                return
            del self._idle_connections[oldest]
            oldest.abort()


class Http1Reply:
    """An answer whose head has come. Implements `upstream.provider_contract.UpstreamReply`.

    Args:
        connection: the connection on which the head has come.
        provider_name: for error messages.
        times: receives the times of first byte and end.
        limit_bytes: the longest body.

    Raises:
        UpstreamUnavailable: the body has an encoding that is not supported.
    """

    __slots__ = (
        *("_allowed_bytes", "_connection", "_encoding", "_has_body_started", "_limit_bytes", "_provider_name"),
        *("_times", "headers", "status"),
    )

    def __init__(
        self, connection: Http1Connection, provider_name: str, times: CallTimes | None, limit_bytes: int
    ) -> None:
        self._connection: Http1Connection | None = connection
        self._provider_name = provider_name
        self._times = times
        self._limit_bytes = self._allowed_bytes = limit_bytes
        self._has_body_started = False
        self.status = connection.status
        headers = connection.headers
        drop_connection_headers(headers)
        self._encoding = ""
        if "content-encoding" in headers:
            try:
                self._encoding = pop_content_encoding(headers, provider_name)
            except UpstreamUnavailable:
                connection.abort()
                raise
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            UpstreamUnavailable: the body broke off, took too long, or is too large to hold.
        """
        try:
            if self._encoding:
                return await read_whole_body(self.iter_bytes())
            # Most answers come in one piece, which needs no join.
            first_piece = await self._read_piece()
            return first_piece if self._connection is None else await read_whole_body(self.iter_bytes(), first_piece)
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces; each is what has come since the last one. If the consumer is cancelled, the
        connection is closed.

        Raises:
            UpstreamUnavailable: the body breaks off, stays silent too long, or is too long.
        """
        if not self._encoding:
            while piece := await self._read_piece():
                yield piece
            return
        try:
            encoded = self._iter_encoded_bytes()
            async for piece in decompress_pieces(encoded, self._encoding, self._provider_name, self._limit_bytes):
                yield piece
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Releases the connection: back to the pool if the answer is complete, else closed."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.release()

    async def _iter_encoded_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body as it is sent."""
        while piece := await self._read_piece():
            yield piece

    async def _read_piece(self) -> bytes:
        """Returns the next piece; empty at the end, which may have come with the last piece."""
        connection = self._connection
        if connection is None:
            return b""
        if not connection.body_pieces and not connection.is_complete:
            await connection.wait_for_body()
        piece = connection.take_body()
        self._allowed_bytes -= len(piece)
        if self._allowed_bytes < 0:
            self._connection = None
            connection.abort()
            raise answer_too_long_error(self._provider_name, self._limit_bytes)
        if not self._has_body_started:
            self._has_body_started = True
            if not connection.is_complete:
                connection.limit_silence_between_pieces()
            if self._times is not None:
                self._times.first_byte_at = time.monotonic()
        if connection.is_complete:
            self._connection = None
            connection.release()
            if self._times is not None:
                self._times.ended_at = time.monotonic()
        return piece
