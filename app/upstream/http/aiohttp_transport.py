"""httpx over aiohttp's connections: the pool of httpx 0.28 takes time that grows with the square of its connections
(decision 51).

Each error of aiohttp becomes the one of httpx that says the same; above all, a connection that was closed after the
request was sent is a `ReadError`, and never an error of connecting.
"""

from __future__ import annotations

import functools
import io
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from yarl import URL

IDLE_CONNECTION_SECONDS: Final = 30.0
"""How long an unused connection is kept."""
HEADER_LIMIT_BYTES: Final = 64 * 1024
"""The longest header line of an answer; aiohttp accepts 128 of them."""
SINGLE_WRITE_BYTES: Final = 1024 * 1024
"""A longer body is written in pieces, each when the socket has taken the last."""
MAX_STALE_CONNECTIONS: Final = 100
"""How many idle connections may be found unusable before a call fails."""
KEEP_ALIVE_SECONDS: Final = 60
"""Silence after which the operating system probes the other end. A model may be silent for minutes, and so is a dead
connection."""
KEEP_ALIVE_PROBE_SECONDS: Final = 20

_OMITTED_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add."""
_on_connected: ContextVar[Callable[[], None]] = ContextVar("on_connected")


@functools.cache
def load_trusted_ca_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Returns a TLS context that trusts the certificates in a file, or the system's roots.

    Loading the roots takes some 20 ms, so all providers share the context. OpenSSL reads `SSL_CERT_FILE` and
    `SSL_CERT_DIR` in place of the system's file and folder.

    Raises:
        OSError: the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(("http/1.1",))
    return context


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends requests of httpx through aiohttp. It keeps connections open, and no cookies.

    It limits the time of connecting. Its caller limits the rest: the extension `on_connected` of a request is called
    when the request is about to be written.

    Args:
        tls: for servers, and for a proxy that is reached over TLS; None: the system's roots.
        proxy: URL of an HTTP proxy; None for none. Variables of the environment are ignored.
        connect_seconds: limits look-up, connection, proxy and TLS together.
    """

    def __init__(self, tls: ssl.SSLContext | None, proxy: str | None, connect_seconds: float | None) -> None:
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_seconds)
        self._proxy = proxy
        self._proxy_address = None if proxy is None else _parse_address(urlsplit(proxy))
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and returns when status and headers have come.

        Raises:
            httpx.ConnectTimeout: no connection in time.
            httpx.ProxyError: the proxy refused. The text is its status.
            httpx.ConnectError: no connection. The cause is an `OSError`; the text is `proxy` if it is the proxy that
                cannot be reached.
            httpx.RemoteProtocolError: the answer is not HTTP. The text says what is wrong, for users.
            httpx.ReadError: the connection was closed after the request was sent, wholly or in part.
        """
        on_connected = _on_connected.set(request.extensions["on_connected"])
        assert isinstance(request.stream, httpx.SyncByteStream)
        body = b"".join(request.stream)
        try:
            response = await (self._session or self._open_session()).request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=[
                    (name.decode(), value.decode() if value.isascii() else _decode_value(value))
                    for name, value in request.headers.raw
                ],
                data=io.BytesIO(body) if len(body) > SINGLE_WRITE_BYTES else body or None,
                allow_redirects=False,
                proxy=self._proxy,
            )
        except aiohttp.ConnectionTimeoutError as error:
            raise httpx.ConnectTimeout("") from error
        except aiohttp.ClientHttpProxyError as error:
            raise httpx.ProxyError(str(error.status)) from error
        except aiohttp.ClientConnectorError as error:
            raise self._convert_connect_error(error) from error.__cause__
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise httpx.ReadError("") from error
        except aiohttp.ClientError as error:
            raise httpx.RemoteProtocolError(_explain_parser_error(error)) from error
        finally:
            # The time limits of a call lead to its task, and the task to its context variables.
            _on_connected.reset(on_connected)
        return httpx.Response(response.status, headers=response.raw_headers, stream=_ResponseBody(response))

    async def aclose(self) -> None:
        """Closes all connections, including those with calls under way."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        connector = _Connector(
            ssl=self._tls or load_trusted_ca_context(),
            limit=0,
            keepalive_timeout=IDLE_CONNECTION_SECONDS,
            resolver=aiohttp.ThreadedResolver(),
            socket_factory=make_keepalive_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_OMITTED_HEADERS,
            auto_decompress=False,
            max_line_size=HEADER_LIMIT_BYTES,
            max_field_size=HEADER_LIMIT_BYTES,
        )
        return self._session

    def _convert_connect_error(self, error: Any) -> httpx.ConnectError:
        is_proxy = isinstance(error, aiohttp.ClientProxyConnectionError) or (
            self._proxy_address == (error.host, error.port)
        )
        return httpx.ConnectError("proxy" if is_proxy else "server")


class _Connector(aiohttp.TCPConnector):
    async def connect(self, *arguments: Any, **named: Any) -> Any:
        """Returns a connection on which nothing has come before the request: it would be taken for the answer."""
        for _ in range(MAX_STALE_CONNECTIONS):
            connection = await super().connect(*arguments, **named)
            assert connection.protocol is not None
            if not connection.protocol.should_close:
                _on_connected.get()()
                return connection
            connection.close()
        raise aiohttp.ServerDisconnectedError


class _ResponseBody(httpx.AsyncByteStream):
    """The body of an answer, in pieces as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    # No generator: one that is left before its end costs a task.
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._response.content.readany()
        # aiohttp raises `RuntimeError` if the client has been closed meanwhile.
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as error:
            raise httpx.ReadError("") from error
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Closes the connection, unless the body has been read to its end."""
        if self._response.connection is not None:
            self._response.close()


def make_keepalive_socket(address: Any) -> socket.socket:
    """Makes a socket that notices when the other end is gone.

    Args:
        address: as `socket.getaddrinfo` gives it.
    """
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", KEEP_ALIVE_SECONDS), ("TCP_KEEPINTVL", KEEP_ALIVE_PROBE_SECONDS)):
        if hasattr(socket, option):  # macOS has other names for them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    return made


def _explain_parser_error(error: aiohttp.ClientError) -> str:
    cause = error.__cause__ and error.__cause__.__cause__
    if isinstance(cause, LineTooLong) or "Too many headers" in str(cause):
        return "the headers of its answer are too long"
    return "its answer is not HTTP"


def _parse_address(url: SplitResult) -> tuple[str | None, int]:
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)


def _decode_value(value: bytes) -> str:
    """Returns a header's value for aiohttp, which sends text as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
