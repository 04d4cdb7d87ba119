"""The client for servers behind a proxy. It uses aiohttp, and is loaded only if a proxy is configured."""

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
from app.upstream.http.decompression import decompress_pieces, pop_content_encoding, read_decompressed_body
from app.upstream.http.dialer import load_trusted_ca_context
from app.upstream.http.http_client_contract import (
    IDLE_CONNECTION_SECONDS,
    READ_BUFFER_BYTES,
    HttpTimeouts,
    RequestHead,
    answer_timeout_error,
    call_failed_error,
    connect_timeout_error,
    connection_dropped_error,
    drop_connection_headers,
    incomplete_answer_error,
    make_keepalive_socket,
    proxy_refusal_error,
    read_whole_body,
    silence_timeout_error,
    unreachable_error,
)
from app.upstream.http.reply_timeouts import ReplyTimeout, TimeoutTimer
from app.upstream.provider_contract import CallTimes


class ProxiedClient:
    """Implements `upstream.http.http_client_contract.HttpClient`.

    Args:
        provider_name: for error messages.
        url: the server's address.
        timeouts: time limits of its calls.
        tls: None: the system's roots. Also used for a proxy that is reached over TLS.
        proxy: URL of an HTTP proxy; None for none.
    """

    def __init__(
        self,
        provider_name: str,
        url: SplitResult,
        timeouts: HttpTimeouts,
        tls: ssl.SSLContext | None,
        proxy: str | None,
    ) -> None:
        self._provider_name = provider_name
        self._origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        self._timeouts = timeouts
        self._tls = tls or load_trusted_ca_context()
        self._proxy = None if proxy is None else URL(proxy)
        self._timeout_timer = TimeoutTimer()
        self._session: aiohttp.ClientSession | None = None
        self._head_timeout = aiohttp.ClientTimeout(
            total=None, connect=timeouts.connect_seconds, sock_read=timeouts.first_byte_seconds
        )

    async def send(
        self, head: RequestHead, body: bytes, deadline: float | None, times: CallTimes | None
    ) -> ProxiedReply:
        """See `upstream.http.http_client_contract.HttpClient`."""
        name = self._provider_name
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._ensure_session().request(
                    head.method,
                    URL(self._origin + head.target, encoded=True),
                    data=io.BytesIO(body) if body else None,  # written a piece at a time
                    headers=head.headers,
                    allow_redirects=False,
                    timeout=self._head_timeout,
                    proxy=self._proxy,
                    ssl=self._tls,
                )
        # The order matters: a ConnectionTimeoutError is also a TimeoutError, and the general classes come last.
        except aiohttp.ConnectionTimeoutError as error:
            raise connect_timeout_error(name) from error
        except TimeoutError as error:
            raise answer_timeout_error(name) from error
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
            raise connection_dropped_error(name) from error
        except aiohttp.ClientConnectorError as error:
            is_proxy = self._proxy is not None and (self._proxy.host, self._proxy.port) == (error.host, error.port)
            raise unreachable_error(name, error.os_error, is_proxy=is_proxy) from error
        except aiohttp.ClientHttpProxyError as error:
            raise proxy_refusal_error(name, error.status) from error
        except aiohttp.ClientOSError as error:
            raise connection_dropped_error(name) from error
        except (aiohttp.ClientError, OSError) as error:
            raise call_failed_error(name, type(error).__name__) from error
        return ProxiedReply(name, response, self._timeout_timer, self._timeouts, deadline, times)

    async def aclose(self) -> None:
        """Closes all connections."""
        self._timeout_timer.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _ensure_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_CONNECTION_SECONDS, socket_factory=make_keepalive_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_BUFFER_BYTES,
                auto_decompress=False,  # it would be done on the event loop
            )
        return self._session


class ProxiedReply:
    """An answer whose head has come. Implements `upstream.provider_contract.UpstreamReply`."""

    __slots__ = (
        "_between_bytes_seconds",
        "_encoding",
        "_provider_name",
        "_response",
        "_timeout",
        "_times",
        "headers",
        "status",
    )

    def __init__(
        self,
        provider_name: str,
        response: aiohttp.ClientResponse,
        timeout_timer: TimeoutTimer,
        timeouts: HttpTimeouts,
        deadline: float | None,
        times: CallTimes | None,
    ) -> None:
        self._times = times
        self._provider_name = provider_name
        self._response = response
        self._between_bytes_seconds = timeouts.between_bytes_seconds
        _disable_aiohttp_timeout(response)
        self._timeout = ReplyTimeout(timeout_timer, self._fail_after_timeout)
        self._timeout.start(silence_seconds=timeouts.first_byte_seconds, deadline=deadline)
        self.status = response.status
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            self._encoding = pop_content_encoding(headers, provider_name)
        except UpstreamUnavailable:
            self._close()
            raise
        drop_connection_headers(headers)
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            UpstreamUnavailable: the body broke off, took too long, or is too large to hold.
        """
        try:
            if self._encoding:
                return await read_decompressed_body(self.iter_bytes(), self._provider_name)
            return await read_whole_body(self.iter_bytes(), self._provider_name)
        except UpstreamUnavailable:
            self._close()
            raise

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces as they arrive. If the consumer is cancelled, the connection is closed.

        Raises:
            UpstreamUnavailable: the body breaks off or stays silent too long.
        """
        if not self._encoding:
            async for piece in self._iter_encoded_bytes():
                yield piece
            return
        try:
            async for piece in decompress_pieces(self._iter_encoded_bytes(), self._encoding, self._provider_name):
                yield piece
        except UpstreamUnavailable:
            self._close()
            raise

    async def _iter_encoded_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body as it is sent; see `iter_bytes`."""
        read_available = self._response.content.readany
        timeout = self._timeout
        try:
            piece = await read_available()
            timeout.set_silence_limit(self._between_bytes_seconds)
            if self._times is not None:
                self._times.first_byte_at = time.monotonic()
            while piece:
                # While the consumer handles a piece, the silence is its own and not the provider's.
                timeout.waiting_since = None
                yield piece
                timeout.waiting_since = timeout.clock()
                piece = await read_available()
            timeout.stop()
            if self._times is not None:
                self._times.ended_at = time.monotonic()
        except asyncio.CancelledError:
            self._close()
            raise
        except TimeoutError as error:
            self._close()
            raise silence_timeout_error(self._provider_name) from error
        except (aiohttp.ClientError, OSError) as error:
            self._close()
            raise incomplete_answer_error(self._provider_name) from error

    async def aclose(self) -> None:
        """Releases the connection: back to the pool if the answer has been read, else closed."""
        self._close()

    def _close(self) -> None:
        self._timeout.close()
        self._response.close()

    def _fail_after_timeout(self) -> None:
        self._response.content.set_exception(aiohttp.SocketTimeoutError("The answer takes too long"))


def _disable_aiohttp_timeout(response: aiohttp.ClientResponse) -> None:
    """Ends aiohttp's read limit, which sets a new timer for each piece. `ReplyTimeout` replaces it."""
    connection = response.connection
    protocol = connection.protocol if connection is not None else None
    if isinstance(protocol, ResponseHandler):
        protocol.read_timeout = None
        protocol.start_timeout()
