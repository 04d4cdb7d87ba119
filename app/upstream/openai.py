"""A provider that speaks OpenAI's protocol, over aiohttp: one call, one answer, no retries (those are the router's).

Nothing of one caller reaches another: there is no cookie jar, and keys travel per call. An error message names the
provider and never an address, since a base URL may carry a secret in its query.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
import warnings
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
import orjson
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from app.errors import InvalidRequest, UpstreamUnavailable
from app.observability.tracing import current_span
from app.upstream.base import AnswerTimedOut, Call, ConnectionDropped, Times
from app.upstream.traced import place_of
from app.upstream.watch import Watch

_IDLE_CONNECTION_SECONDS = 30.0
_MODELS_TIMEOUT_SECONDS = 10.0
_BODY_LIMIT_BYTES = 256 * 1024 * 1024
_READ_BUFFER_BYTES = 256 * 1024

_NOT_SENT = frozenset(
    {"accept-encoding", "authorization", "connection", "content-length", "cookie", "host", "keep-alive"}
    | {"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers of the client's own connection, and those that are set here."""

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_-]*")
_QUERY_SAFE = "/?:@!$&'()*+,;=~%[]"

_NOT_TAKEN = frozenset({"connection", "keep-alive", "set-cookie", "trailer", "transfer-encoding", "upgrade"})

# aiohttp warns of bodies above a megabyte, which are what histories are; they are written without being copied.
warnings.filterwarnings("ignore", "Sending a large body directly", ResourceWarning)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a provider may take, in seconds; None is for ever.

    `first_byte` runs from the request to the first byte of the answer's body, `between_bytes` from one piece to the
    next, `whole` over everything.
    """

    connect_seconds: float | None = 5.0
    first_byte_seconds: float | None = 600.0
    between_bytes_seconds: float | None = 300.0
    whole_seconds: float | None = None


class OpenAIProvider:
    """A model server below `base_url`.

    Args:
        name: as configured; error messages and facts learned go by it.
        base_url: such as ``https://api.openai.com/v1``; a query (``?api-version=…``) goes with each call.
        api_key: empty or None passes the client's own key on.
        timeouts: see `Timeouts`.
        headers: sent with each call, over the client's own of the same name.
        auth_header: where the key goes: ``authorization`` (as a bearer token), or a header such as ``api-key``.
        proxy: URL of an HTTP proxy.
        ssl_context: for servers whose certificates need other roots than the system's.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        auth_header: str = "authorization",
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self._base, _, self._query = base_url.partition("?")
        self._base = self._base.rstrip("/")
        self._api_key = api_key or None
        self._timeouts = timeouts or Timeouts()
        self._headers = {key.lower(): value for key, value in (headers or {}).items()}
        self._auth_header = auth_header.lower()
        self._proxy = proxy
        self._ssl: ssl.SSLContext | bool = ssl_context or True
        self._session: aiohttp.ClientSession | None = None
        self._place = place_of(name, self._base)
        """What spans say of where calls go."""
        self._until_head = aiohttp.ClientTimeout(
            total=None, connect=self._timeouts.connect_seconds, sock_read=self._timeouts.first_byte_seconds
        )

    async def send(self, call: Call) -> HttpReply:
        """Send a call; returns when status and headers are there, whatever the status. Redirects are not followed.

        Raises:
            UpstreamUnavailable: no connection, or an answer that is not HTTP.
            ConnectionDropped: closed before a byte of the answer.
            AnswerTimedOut: no answer in time.
        """
        current_span().set(self._place)
        return await self._send(call, self._timeouts.whole_seconds)

    async def models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Its model list; `{"data": […]}`, `{"models": […]}` and a bare list are understood.

        Raises:
            UpstreamUnavailable: it could not be had.
        """
        call = Call("/models", method="GET", authorization=authorization)
        reply = await self._send(call, _MODELS_TIMEOUT_SECONDS)
        try:
            body = await reply.read()
        finally:
            await reply.aclose()
        if reply.status != 200:
            raise UpstreamUnavailable(f"Provider {self.name!r} answered {reply.status} instead of a model list.")
        return _model_entries(self.name, body)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(self, call: Call, whole_seconds: float | None) -> HttpReply:
        url = self._url(call)
        ends_at = None if whole_seconds is None else asyncio.get_running_loop().time() + whole_seconds
        try:
            async with asyncio.timeout_at(ends_at):
                response = await self._opened_session().request(
                    call.method,
                    url,
                    data=call.body or None,
                    headers=self._headers_for(call),
                    allow_redirects=False,
                    timeout=self._until_head,
                    proxy=self._proxy,
                    ssl=self._ssl,
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise UpstreamUnavailable(f"Provider {self.name!r} could not be reached in time.", status=504) from error
        except TimeoutError as error:
            raise AnswerTimedOut(f"Provider {self.name!r} did not answer in time.", status=504) from error
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
            raise ConnectionDropped(f"Provider {self.name!r} closed the connection without an answer.") from error
        except aiohttp.ClientConnectorError as error:
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            raise UpstreamUnavailable(f"Provider {self.name!r} could not be reached: {reason}.") from error
        except aiohttp.ClientOSError as error:
            raise ConnectionDropped(f"Provider {self.name!r} closed the connection without an answer.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"The call to provider {self.name!r} failed: {type(error).__name__}.") from error
        return HttpReply(self.name, response, self._timeouts, ends_at, call.times)

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_IDLE_CONNECTION_SECONDS, socket_factory=_kept_alive_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "concertina"},
                read_bufsize=_READ_BUFFER_BYTES,
            )
        return self._session

    def _url(self, call: Call) -> URL:
        path = call.path
        if _PLAIN_PATH.fullmatch(path) is None:
            _refuse_climbing(path)
            path = quote(path, safe="/:@!$&'()*+,;=~%")
        query = "&".join(part for part in (self._query, quote(call.query, safe=_QUERY_SAFE)) if part)
        return URL(f"{self._base}{path}?{query}" if query else self._base + path, encoded=True)

    def _headers_for(self, call: Call) -> dict[str, str]:
        headers = {name: value for name, value in call.headers.items() if name not in _NOT_SENT}
        if trace := current_span().headers():
            headers.pop("tracestate", None)
            headers.update(trace)
        if call.body:
            headers.setdefault("content-type", "application/json")
        headers["accept-encoding"] = "identity"
        headers.update(self._headers)
        key = f"Bearer {self._api_key}" if self._api_key else call.authorization
        if key and self._auth_header == "authorization":
            headers["authorization"] = key
        elif key:
            headers[self._auth_header] = key.removeprefix("Bearer ")
        return headers


class HttpReply:
    """An answer under way; `upstream.base.Reply`."""

    __slots__ = ("_between_bytes_seconds", "_provider", "_response", "_times", "_watch", "headers", "status")

    def __init__(
        self,
        provider: str,
        response: aiohttp.ClientResponse,
        timeouts: Timeouts,
        ends_at: float | None,
        times: Times | None = None,
    ) -> None:
        self._times = times
        self._provider = provider
        self._response = response
        self._between_bytes_seconds = timeouts.between_bytes_seconds
        _stop_own_limit(response)
        self._watch = Watch(self._expire, silence_seconds=timeouts.first_byte_seconds, ends_at=ends_at)
        self.status = response.status
        headers = {name.lower(): value for name, value in response.headers.items()}
        if "content-encoding" in headers:
            del headers["content-encoding"]
            headers.pop("content-length", None)
        self.headers: Mapping[str, str] = {name: headers[name] for name in headers.keys() - _NOT_TAKEN}

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            UpstreamUnavailable: it broke off, took too long, or is larger than can be held.
        """
        pieces: list[bytes] = []
        size = 0
        async for piece in self.chunks():
            pieces.append(piece)
            size += len(piece)
            if size > _BODY_LIMIT_BYTES:
                self._close()
                raise UpstreamUnavailable(
                    f"Provider {self._provider!r} sent an answer of more than {_BODY_LIMIT_BYTES} bytes."
                )
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive. A consumer that is cancelled cuts the connection.

        Raises:
            UpstreamUnavailable: it breaks off or stays silent too long.
        """
        read_some = self._response.content.readany
        watch = self._watch
        now = watch.now
        try:
            piece = await read_some()
            watch.limit_silence(self._between_bytes_seconds)
            if self._times is not None:
                self._times.first_byte = time.monotonic()
            while piece:
                watch.waiting_since = None
                yield piece
                watch.waiting_since = now()
                piece = await read_some()
            watch.stop()
            if self._times is not None:
                self._times.ended = time.monotonic()
        except asyncio.CancelledError:
            self._close()
            raise
        except TimeoutError as error:
            self._close()
            raise UpstreamUnavailable(f"Provider {self._provider!r} fell silent in its answer.", status=504) from error
        except (aiohttp.ClientError, OSError) as error:
            self._close()
            raise UpstreamUnavailable(f"The answer of provider {self._provider!r} broke off.") from error

    async def aclose(self) -> None:
        """Let go of the connection: back to the pool if the answer has been read, closed if not."""
        self._close()

    def _close(self) -> None:
        self._watch.stop()
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


def _kept_alive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices a peer which is gone: a model may be silent for minutes, and so may a dead connection."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


def _refuse_climbing(path: str) -> None:
    if ".." in unquote(path).replace("\\", "/").split("/"):
        raise InvalidRequest("The path must not contain '..'.", code="invalid_path")


def _model_entries(name: str, body: bytes) -> list[dict[str, Any]]:
    try:
        listed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable(f"The model list of provider {name!r} is not JSON.") from error
    if isinstance(listed, dict):
        listed = listed.get("data", listed.get("models"))
    if not isinstance(listed, list):
        raise UpstreamUnavailable(f"The model list of provider {name!r} holds no list.")
    return [entry for entry in listed if isinstance(entry, dict)]
