"""The client for calls to providers: requests and answers of httpx over `AiohttpTransport`, without a client object of
httpx. So no cookies are kept, no redirects followed, no variables of the environment read, and no addresses logged.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import SplitResult

import httpx

from app.errors import UpstreamUnavailable
from app.upstream.http.aiohttp_transport import AiohttpTransport
from app.upstream.http.decompression import decompress_pieces, pop_content_encoding
from app.upstream.http.http_client_contract import (
    HttpTimeouts,
    RequestHead,
    call_failed_error,
    incomplete_answer_error,
    silence_timeout_error,
    unreachable_error,
)
from app.upstream.provider_contract import ANSWER_LIMIT_BYTES, AnswerTimedOut, CallTimes, ConnectionDropped

NEVER: Final = float("inf")
CACHED_URLS: Final = 64
"""How many quoted and parsed URLs a provider caches: parsing one takes 25 µs."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
SWITCHING_PROTOCOLS: Final = 101
LOOP_JOIN_BYTES: Final = 1024 * 1024
"""A longer body is joined in a thread: on the event loop that would hold up other requests."""
BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
"""Methods for which a missing body needs no `content-length` (RFC 9110, 8.6)."""
_CONNECTION_HEADERS = frozenset({"connection", "keep-alive", "set-cookie", "trailer", "transfer-encoding", "upgrade"})
"""Headers about the provider's own connection, and cookies, which no client may see."""


class HttpClient:
    """Sends calls to one server. It does not follow redirects or keep cookies.

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
        origin = httpx.URL(scheme=url.scheme, host=ascii_host(url), port=url.port)
        self._find_or_parse_url = functools.lru_cache(CACHED_URLS)(
            lambda target: origin.copy_with(raw_path=target.encode())
        )
        self._timeouts = timeouts
        self._has_proxy = proxy is not None
        self._transport = AiohttpTransport(tls, proxy, timeouts.connect_seconds)

    async def send(
        self,
        head: RequestHead,
        body: bytes,
        deadline: float | None,
        times: CallTimes | None,
        *,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> HttpReply:
        """Sends a request and returns when status and headers have come.

        Args:
            head: method, target and headers.
            body: may be empty.
            deadline: loop time at which the whole answer must have ended; None for never.
            times: receives the times of first byte and end.
            limit_bytes: a longer body is cut off; reading it raises `UpstreamUnavailable`.

        Raises:
            UpstreamUnavailable: no connection, or the answer is not HTTP.
            ConnectionDropped: the connection was closed before a byte of the answer.
            AnswerTimedOut: no answer in time.
        """
        name = self._provider_name
        limits = _CallLimits(self._timeouts, deadline)
        try:
            async with asyncio.timeout_at(deadline) as limits.head_timeout:
                response = await self._transport.handle_async_request(self._build_request(head, body, limits))
        except TimeoutError as error:
            raise AnswerTimedOut(f"Provider {name!r} did not answer in time.", status=504) from error
        except httpx.ConnectTimeout as error:
            raise UpstreamUnavailable(f"Provider {name!r} could not be reached in time.", status=504) from error
        except httpx.ProxyError as error:
            raise UpstreamUnavailable(
                f"Provider {name!r} could not be reached: its proxy answered with status {error}.",
                hint=f"Check providers.{name}.proxy, and the proxy's access rules.",
            ) from error
        except httpx.ConnectError as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else ConnectionResetError(errno.ECONNRESET)
            raise unreachable_error(name, cause, is_proxy=self._has_proxy and str(error) != "server") from error
        except httpx.NetworkError as error:
            raise ConnectionDropped(f"Provider {name!r} closed the connection without an answer.") from error
        except httpx.RemoteProtocolError as error:
            raise call_failed_error(name, str(error)) from error
        except httpx.HTTPError as error:
            raise call_failed_error(name, type(error).__name__) from error
        try:
            return HttpReply(name, response, limits, times, limit_bytes)
        except UpstreamUnavailable:
            await response.aclose()
            raise

    async def aclose(self) -> None:
        """Closes all connections, including those with calls under way."""
        await self._transport.aclose()

    def _build_request(self, head: RequestHead, body: bytes, limits: _CallLimits) -> httpx.Request:
        headers = [(key.encode(), value.encode("latin-1")) for key, value in head.headers.items()]
        if body or head.method not in BODILESS_METHODS:
            headers.append((b"content-length", b"%d" % len(body)))
        return httpx.Request(
            head.method,
            self._find_or_parse_url(head.target),
            headers=headers,
            stream=httpx.ByteStream(body),  # the preparation of `content` takes 20 µs
            extensions={"on_connected": limits.begin_request},
        )


class _CallLimits:
    """The time limits of a call.

    Attributes:
        answer_by: loop time at which the first piece of the body must have come.
        deadline: loop time at which the whole answer must have ended.
        head_timeout: limits the wait for the head of the answer; set by the caller.
    """

    def __init__(self, timeouts: HttpTimeouts, deadline: float | None) -> None:
        self.now = asyncio.get_running_loop().time
        self.timeouts = timeouts
        self.deadline = self.answer_by = NEVER if deadline is None else deadline
        self.head_timeout: asyncio.Timeout | None = None

    def limit_time(self, seconds: float | None) -> float:
        """Returns the loop time that is this far from now, at the latest the deadline."""
        return self.deadline if seconds is None else min(self.deadline, self.now() + seconds)

    def begin_request(self) -> None:
        """Starts the limit for the first byte: there is a connection, and the request is about to be written."""
        self.answer_by = self.limit_time(self.timeouts.first_byte_seconds)
        assert self.head_timeout is not None
        self.head_timeout.reschedule(None if self.answer_by == NEVER else self.answer_by)


class HttpReply:
    """An answer whose head has come. Implements `upstream.provider_contract.UpstreamReply`.

    Args:
        provider_name: for error messages.
        response: its head.
        limits: its time limits.
        times: receives the times of first byte and end.
        limit_bytes: the longest body.

    Raises:
        UpstreamUnavailable: where the body ends is in doubt, or it has an encoding that is not supported.
    """

    def __init__(
        self,
        provider_name: str,
        response: httpx.Response,
        limits: _CallLimits,
        times: CallTimes | None,
        limit_bytes: int,
    ) -> None:
        self._provider_name = provider_name
        self._limit_bytes = limit_bytes
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._stream = response.stream
        self._limits = limits
        self._times = times
        self.status = response.status_code
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}
        if not _is_framed_plainly(headers) or self.status == SWITCHING_PROTOCOLS:
            raise call_failed_error(provider_name, "its answer is not HTTP")
        self._announced_length = headers.get("content-length")
        self._encoding = pop_content_encoding(headers, provider_name)
        for header in _CONNECTION_HEADERS:
            headers.pop(header, None)
        self.headers: Mapping[str, str] = headers

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            UpstreamUnavailable: the body broke off, took too long, or is too large to hold.
        """
        parts = [piece async for piece in self.iter_bytes()]
        return b"".join(parts) if sum(map(len, parts)) <= LOOP_JOIN_BYTES else await asyncio.to_thread(b"".join, parts)

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces as they arrive. If that fails, or the consumer is cancelled, the connection
        is closed.

        Raises:
            UpstreamUnavailable: while iterating, if the body breaks off, stays silent too long, or is too long.
        """
        pieces = self._iter_encoded_bytes()
        if not self._encoding:
            return pieces
        return decompress_pieces(pieces, self._encoding, self._provider_name, self._limit_bytes)

    async def aclose(self) -> None:
        """Releases the connection: it is used again if the answer has been read, else closed."""
        await self._stream.aclose()

    async def _iter_encoded_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body as it is sent; see `iter_bytes`."""
        limits, times = self._limits, self._times
        pieces, received_bytes = aiter(self._stream), 0
        piece_by = limits.answer_by
        try:
            while True:
                try:
                    async with asyncio.timeout_at(None if piece_by == NEVER else piece_by):
                        piece = await anext(pieces, b"")
                except (TimeoutError, httpx.TimeoutException) as error:
                    raise silence_timeout_error(self._provider_name) from error
                except httpx.HTTPError as error:
                    raise incomplete_answer_error(self._provider_name) from error
                if times is not None and times.first_byte_at is None:
                    times.first_byte_at = time.monotonic()
                if not piece:
                    break
                received_bytes += len(piece)
                if received_bytes > self._limit_bytes:
                    raise UpstreamUnavailable(
                        f"Provider {self._provider_name!r} sent an answer of more than {self._limit_bytes} bytes."
                    )
                yield piece
                # While the consumer handles a piece, the silence is its own and not the provider's.
                piece_by = limits.limit_time(limits.timeouts.between_bytes_seconds)
                # A server that always has sent more would never make the next step wait, and so never be too late.
                if limits.deadline <= limits.now():
                    raise silence_timeout_error(self._provider_name)
                if str(received_bytes) == self._announced_length:
                    break
        except (asyncio.CancelledError, UpstreamUnavailable):
            await self.aclose()
            raise
        if times is not None:
            times.ended_at = time.monotonic()


def ascii_host(url: SplitResult) -> str:
    """Returns the host of a URL as DNS and certificates have it: international names in ASCII."""
    host = url.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _is_framed_plainly(headers: Mapping[str, str]) -> bool:
    """Says whether an answer tells in one way only where its body ends."""
    coding = headers.get("transfer-encoding")
    return coding is None or (coding.lower() == "chunked" and "content-length" not in headers)
