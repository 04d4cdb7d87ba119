"""The client for servers behind a proxy and for model lists. It uses httpx, without a client object of httpx: no
cookies, no redirects, no variables of the environment (decision 42).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult

import httpx

from app.errors import UpstreamUnavailable
from app.upstream.http.decompression import decompress_pieces, pop_content_encoding
from app.upstream.http.dialer import ascii_host, load_trusted_ca_context
from app.upstream.http.http_client_contract import (
    BODILESS_METHODS,
    IDEMPOTENT_METHODS,
    IDLE_CONNECTION_SECONDS,
    SWITCHING_PROTOCOLS,
    WRITE_PIECE_BYTES,
    HttpTimeouts,
    RequestHead,
    answer_timeout_error,
    answer_too_long_error,
    call_failed_error,
    connect_timeout_error,
    connection_dropped_error,
    drop_connection_headers,
    incomplete_answer_error,
    proxy_refusal_error,
    read_whole_body,
    silence_timeout_error,
    unreachable_error,
)
from app.upstream.http.httpx_network import NetworkBackend, NetworkStream
from app.upstream.provider_contract import ANSWER_LIMIT_BYTES, CallTimes, ConnectionDropped

NEVER: Final = float("inf")
ONE_CONNECTION: Final = httpx.Limits(
    max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_CONNECTION_SECONDS
)


class HttpxClient:
    """Implements `upstream.http.http_client_contract.HttpClient`.

    Each connection has a transport of its own: the pool of httpx takes time that grows with the square of its
    connections, and hands one idle connection to several waiting calls (decision 42).

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
        self._origin = httpx.URL(scheme=url.scheme, host=ascii_host(url), port=url.port)
        self._timeouts = timeouts
        self._tls = tls
        self._proxy = proxy
        self._transports: set[httpx.AsyncHTTPTransport] = set()
        self._idle_transports: dict[httpx.AsyncHTTPTransport, float] = {}
        """With the loop time of their last answer; the longest idle one first."""

    async def send(
        self,
        head: RequestHead,
        body: bytes,
        deadline: float | None,
        times: CallTimes | None,
        *,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> HttpxReply:
        """See `upstream.http.http_client_contract.HttpClient`."""
        await self._close_idle_transports()
        while True:
            transport = self._idle_transports.popitem()[0] if self._idle_transports else self._make_transport()
            call = _Call(self._timeouts, deadline)
            try:
                response = await self._send_once(transport, call, head, body)
                release = functools.partial(self._release, transport, response)
                return HttpxReply(self._provider_name, response, call, times, release, limit_bytes)
            # The server may have closed the connection while it was idle: try the next.
            except BaseException as error:
                self._transports.discard(transport)
                await asyncio.shield(transport.aclose())
                is_repeatable = head.method in IDEMPOTENT_METHODS and not call.opened_connection
                if not (isinstance(error, ConnectionDropped) and is_repeatable):
                    raise

    async def aclose(self) -> None:
        """Closes all connections, including those with calls under way."""
        transports, self._transports = self._transports, set()
        self._idle_transports.clear()
        for transport in transports:
            await transport.aclose()

    async def _send_once(
        self, transport: httpx.AsyncHTTPTransport, call: _Call, head: RequestHead, body: bytes
    ) -> httpx.Response:
        name = self._provider_name
        try:
            async with asyncio.timeout_at(call.connect_by) as call.timeout:
                response = await transport.handle_async_request(self._build_request(head, body, call))
        except (TimeoutError, httpx.TimeoutException) as error:
            is_late = call.is_connected or call.is_deadline_first
            raise (answer_timeout_error if is_late else connect_timeout_error)(name) from error
        except httpx.ProxyError as error:  # its text is the status line of the proxy's answer
            raise proxy_refusal_error(name, int(str(error).split(" ")[0])) from error
        except httpx.ConnectError as error:
            is_proxy = self._proxy is not None and not call.is_tunnel_open
            raise unreachable_error(name, _find_os_error(error), is_proxy=is_proxy) from error
        except httpx.NetworkError as error:
            raise connection_dropped_error(name) from error
        except httpx.HTTPError as error:
            if _is_disconnect(error):
                raise connection_dropped_error(name) from error
            raise call_failed_error(name, type(error).__name__) from error
        stream = response.extensions.get("network_stream")
        if isinstance(stream, NetworkStream) and stream.awaits_answer:  # made of bytes from before the request
            raise connection_dropped_error(name)
        has_two_framings = {"content-length", "transfer-encoding"} <= response.headers.keys()
        if has_two_framings or response.status_code == SWITCHING_PROTOCOLS:
            raise call_failed_error(name, "its answer is not HTTP")
        return response

    def _release(self, transport: httpx.AsyncHTTPTransport, response: httpx.Response) -> None:
        """Takes back the transport of an answer that is closed."""
        stream = response.extensions.get("network_stream")
        if transport in self._transports and isinstance(stream, NetworkStream) and stream.is_open:
            self._idle_transports[transport] = asyncio.get_running_loop().time()
        else:
            self._transports.discard(transport)

    async def _close_idle_transports(self) -> None:
        """Closes connections that were idle too long."""
        oldest = asyncio.get_running_loop().time() - IDLE_CONNECTION_SECONDS
        while self._idle_transports:
            transport = next(iter(self._idle_transports))
            if self._idle_transports[transport] > oldest:
                break
            del self._idle_transports[transport]
            self._transports.discard(transport)
            await transport.aclose()

    def _make_transport(self) -> httpx.AsyncHTTPTransport:
        tls = self._tls or load_trusted_ca_context()
        is_proxy_over_tls = self._proxy is not None and self._proxy.lower().startswith("https:")
        proxy = (
            None if self._proxy is None else httpx.Proxy(self._proxy, ssl_context=tls if is_proxy_over_tls else None)
        )
        transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False, limits=ONE_CONNECTION, proxy=proxy)
        # httpcore has a public argument for it, httpx does not pass one on.
        transport._pool._network_backend = NetworkBackend()
        self._transports.add(transport)
        return transport

    def _build_request(self, head: RequestHead, body: bytes, call: _Call) -> httpx.Request:
        headers = [(key.encode(), value.encode("latin-1")) for key, value in head.headers.items()]
        if body or head.method not in BODILESS_METHODS:
            headers.append((b"content-length", b"%d" % len(body)))
        return httpx.Request(
            head.method,
            self._origin.copy_with(raw_path=head.target.encode()),
            headers=headers,
            stream=_RequestBody(body),
            extensions={"trace": call.trace},
        )


class _Call:
    """The time limits of a call, and how far it has come.

    Attributes:
        answer_by: loop time at which the first piece of the body must have come.
        deadline: loop time at which the whole answer must have ended.
        timeout: limits the part of the call that runs; set by the caller.
        opened_connection: whether the request did not find an idle connection.
        is_tunnel_open: whether the proxy has connected to the server.
        is_connected: whether the request itself is being sent.
    """

    def __init__(self, timeouts: HttpTimeouts, deadline: float | None) -> None:
        self.now = asyncio.get_running_loop().time
        self.timeouts = timeouts
        self.deadline = NEVER if deadline is None else deadline
        self.answer_by = self.deadline
        connect_by = self.limit_time(timeouts.connect_seconds)
        self.is_deadline_first = connect_by == self.deadline
        self.connect_by = None if connect_by == NEVER else connect_by
        self.timeout: asyncio.Timeout | None = None
        self.opened_connection = self.is_tunnel_open = self.is_connected = False

    def limit_time(self, seconds: float | None) -> float:
        """Returns the loop time that is this far from now, at the latest the deadline."""
        return self.deadline if seconds is None else min(self.deadline, self.now() + seconds)

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Follows the call (httpx: extension `trace`). The limit for connecting ends when the request is sent."""
        if event == "connection.connect_tcp.started":
            self.opened_connection = True
        elif event == "proxy.start_tls.started":
            self.is_tunnel_open = True
        elif event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
            self.is_connected = True
            self.answer_by = self.limit_time(self.timeouts.first_byte_seconds)
            assert self.timeout is not None
            self.timeout.reschedule(None if self.answer_by == NEVER else self.answer_by)


class _RequestBody(httpx.AsyncByteStream):
    """A request's body, written a piece at a time."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), WRITE_PIECE_BYTES):
            yield self._body[start : start + WRITE_PIECE_BYTES]


class HttpxReply:
    """An answer whose head has come. Implements `upstream.provider_contract.UpstreamReply`.

    Args:
        provider_name: for error messages.
        response: its head.
        call: its time limits.
        times: receives the times of first byte and end.
        on_close: called once, when the answer is closed.
        limit_bytes: the longest body.

    Raises:
        UpstreamUnavailable: the body has an encoding that is not supported.
    """

    __slots__ = (
        *("_call", "_encoding", "_limit_bytes", "_on_close", "_provider_name", "_response", "_times"),
        *("headers", "status"),
    )

    def __init__(
        self,
        provider_name: str,
        response: httpx.Response,
        call: _Call,
        times: CallTimes | None,
        on_close: Callable[[], None],
        limit_bytes: int,
    ) -> None:
        self._provider_name = provider_name
        self._limit_bytes = limit_bytes
        self._response = response
        self._call = call
        self._times = times
        self._on_close: Callable[[], None] | None = on_close
        self.status = response.status_code
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}
        self._encoding = pop_content_encoding(headers, provider_name)
        drop_connection_headers(headers)
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            UpstreamUnavailable: the body broke off, took too long, or is too large to hold.
        """
        try:
            return await read_whole_body(self.iter_bytes())
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces as they arrive. If the consumer is cancelled, the connection is closed.

        Raises:
            UpstreamUnavailable: the body breaks off, stays silent too long, or is too long.
        """
        if not self._encoding:
            async for piece in self._iter_encoded_bytes():
                yield piece
            return
        try:
            encoded = self._iter_encoded_bytes()
            async for piece in decompress_pieces(encoded, self._encoding, self._provider_name, self._limit_bytes):
                yield piece
        except UpstreamUnavailable:
            await self.aclose()
            raise

    async def _iter_encoded_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body as it is sent; see `iter_bytes`. httpx closes the connection if reading fails or is
        cancelled.
        """
        call, times = self._call, self._times
        pieces, allowed_bytes = self._response.aiter_raw(), self._limit_bytes
        piece_by = call.answer_by
        while True:
            try:
                async with asyncio.timeout_at(None if piece_by == NEVER else piece_by):
                    piece = await anext(pieces, b"")
            except asyncio.CancelledError:
                self._close()
                raise
            except (TimeoutError, httpx.TimeoutException) as error:
                self._close()
                raise silence_timeout_error(self._provider_name) from error
            except httpx.HTTPError as error:
                self._close()
                raise incomplete_answer_error(self._provider_name) from error
            if times is not None and times.first_byte_at is None:
                times.first_byte_at = time.monotonic()
            if not piece:
                break
            allowed_bytes -= len(piece)
            if allowed_bytes < 0:
                await self.aclose()
                raise answer_too_long_error(self._provider_name, self._limit_bytes)
            yield piece
            # While the consumer handles a piece, the silence is its own and not the provider's.
            piece_by = call.limit_time(call.timeouts.between_bytes_seconds)
        self._close()
        if times is not None:
            times.ended_at = time.monotonic()

    async def aclose(self) -> None:
        """Releases the connection: it is used again if the answer has been read, else closed."""
        await self._response.aclose()
        self._close()

    def _close(self) -> None:
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


def _find_os_error(error: BaseException) -> OSError:
    """Returns the operating system's or OpenSSL's error behind one of httpx."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError | socket.gaierror) or (isinstance(cause, OSError) and cause.errno):
            # OpenSSL waits for data: no error, but the context of what came instead.
            if not isinstance(cause, ssl.SSLWantReadError):
                return cause
        elif isinstance(cause, BaseExceptionGroup):  # one error for each address of a name
            return _find_os_error(cause.exceptions[0])
        cause = cause.__cause__ or cause.__context__
    return ConnectionResetError(errno.ECONNRESET, "")


def _is_disconnect(error: httpx.HTTPError) -> bool:
    """Says whether the connection was closed before the head of an answer. If the head is wrong, a parser error
    stands behind the one of httpx.
    """
    return isinstance(error, httpx.RemoteProtocolError) and (
        error.__cause__ is None or error.__cause__.__context__ is None
    )
