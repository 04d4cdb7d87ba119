"""The client for servers that are reached through a proxy: aiohttp, which is loaded where one is configured."""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from urllib.parse import SplitResult

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from app.errors import UpstreamUnavailable
from app.upstream.http.client import (
    IDLE_CONNECTION_SECONDS,
    READ_BUFFER_BYTES,
    Head,
    Timeouts,
    broke_off,
    dropped,
    failed,
    fell_silent,
    gathered,
    keep_what_is_ours,
    kept_alive_socket,
    refused_by_proxy,
    unanswered_in_time,
    unreachable,
    unreachable_in_time,
)
from app.upstream.http.dial import tls_context
from app.upstream.http.inflate import inflate_pieces, read_inflated, take_encoding
from app.upstream.http.timeouts import Watch, Watches
from app.upstream.provider import Times


class ProxiedClient:
    """Implements `upstream.http.client.Client`.

    Args:
        name: of the provider.
        url: where its server is.
        tls: None: the system's roots. For a proxy that is reached over TLS, too.
        proxy: URL of an HTTP proxy; None for none.
    """

    def __init__(
        self, name: str, url: SplitResult, timeouts: Timeouts, tls: ssl.SSLContext | None, proxy: str | None
    ) -> None:
        self._name = name
        self._origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        self._timeouts = timeouts
        self._tls = tls or tls_context()
        self._proxy = None if proxy is None else URL(proxy)
        self._watches = Watches()
        self._session: aiohttp.ClientSession | None = None
        self._until_head = aiohttp.ClientTimeout(
            total=None, connect=timeouts.connect_seconds, sock_read=timeouts.first_byte_seconds
        )

    async def send(self, head: Head, body: bytes, ends_at: float | None, times: Times | None) -> ProxiedReply:
        """See `upstream.http.client.Client`."""
        name = self._name
        try:
            async with asyncio.timeout_at(ends_at):
                response = await self._opened_session().request(
                    head.method,
                    URL(self._origin + head.target, encoded=True),
                    data=io.BytesIO(body) if body else None,  # written a piece at a time
                    headers=head.headers,
                    allow_redirects=False,
                    timeout=self._until_head,
                    proxy=self._proxy,
                    ssl=self._tls,
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise unreachable_in_time(name) from error
        except TimeoutError as error:
            raise unanswered_in_time(name) from error
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
            raise dropped(name) from error
        except aiohttp.ClientConnectorError as error:
            is_proxy = self._proxy is not None and (self._proxy.host, self._proxy.port) == (error.host, error.port)
            raise unreachable(name, error.os_error, is_proxy=is_proxy) from error
        except aiohttp.ClientHttpProxyError as error:
            raise refused_by_proxy(name, error.status) from error
        except aiohttp.ClientOSError as error:
            raise dropped(name) from error
        except (aiohttp.ClientError, OSError) as error:
            raise failed(name, type(error).__name__) from error
        return ProxiedReply(name, response, self._watches, self._timeouts, ends_at, times)

    async def aclose(self) -> None:
        """Close all connections."""
        self._watches.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_CONNECTION_SECONDS, socket_factory=kept_alive_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_BUFFER_BYTES,
                auto_decompress=False,  # it would be done on the event loop
            )
        return self._session


class ProxiedReply:
    """An answer under way; `upstream.provider.Reply`."""

    __slots__ = ("_between_bytes_seconds", "_encoding", "_name", "_response", "_times", "_watch", "headers", "status")

    def __init__(
        self,
        name: str,
        response: aiohttp.ClientResponse,
        watches: Watches,
        timeouts: Timeouts,
        ends_at: float | None,
        times: Times | None,
    ) -> None:
        self._times = times
        self._name = name
        self._response = response
        self._between_bytes_seconds = timeouts.between_bytes_seconds
        _stop_own_limit(response)
        self._watch = Watch(watches, self._expire)
        self._watch.begin(silence_seconds=timeouts.first_byte_seconds, ends_at=ends_at)
        self.status = response.status
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            self._encoding = take_encoding(headers, name)
        except UpstreamUnavailable:
            self._close()
            raise
        keep_what_is_ours(headers)
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            UpstreamUnavailable: it broke off, took too long, or is larger than can be held.
        """
        try:
            if self._encoding:
                return await read_inflated(self.chunks(), self._name)
            return await gathered(self.chunks(), self._name)
        except UpstreamUnavailable:
            self._close()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive. A consumer that is cancelled cuts the connection.

        Raises:
            UpstreamUnavailable: it breaks off or stays silent too long.
        """
        if not self._encoding:
            async for piece in self._pieces():
                yield piece
            return
        try:
            async for piece in inflate_pieces(self._pieces(), self._encoding, self._name):
                yield piece
        except UpstreamUnavailable:
            self._close()
            raise

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body as it is sent; see `chunks`."""
        read_some = self._response.content.readany
        watch = self._watch
        try:
            piece = await read_some()
            watch.limit_silence(self._between_bytes_seconds)
            if self._times is not None:
                self._times.first_byte = time.monotonic()
            while piece:
                watch.waiting_since = None
                yield piece
                watch.waiting_since = watch.now()
                piece = await read_some()
            watch.stop()
            if self._times is not None:
                self._times.ended = time.monotonic()
        except asyncio.CancelledError:
            self._close()
            raise
        except TimeoutError as error:
            self._close()
            raise fell_silent(self._name) from error
        except (aiohttp.ClientError, OSError) as error:
            self._close()
            raise broke_off(self._name) from error

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if the answer has been read, closed if not."""
        self._close()

    def _close(self) -> None:
        self._watch.end()
        self._response.close()

    def _expire(self) -> None:
        self._response.content.set_exception(aiohttp.SocketTimeoutError("The answer takes too long"))


def _stop_own_limit(response: aiohttp.ClientResponse) -> None:
    """End aiohttp's limit, which is a new timer for each piece that comes."""
    connection = response.connection
    protocol = connection.protocol if connection is not None else None
    if isinstance(protocol, ResponseHandler):
        protocol.read_timeout = None
        protocol.start_timeout()
