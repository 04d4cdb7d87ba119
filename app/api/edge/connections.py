"""How long clients may take over what they send and read, and how much of it there may be before a request begins.

uvicorn waits for ever: for a head that never ends, a body that trickles in, a client that does not read. Here all
connections of a process are looked at together, about once a second, so that a request itself pays next to nothing.
"""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import threading
from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.edge.error_responses import build_error_body, build_error_headers
from app.errors import GatewayError, HeadTooLarge, InvalidRequest, Overloaded, RequestTimedOut
from app.observability.metric_families import CONNECTIONS, CUTS
from app.observability.metrics import Metrics

log = logging.getLogger(__name__)

SLOW_CLIENT: Final = "concertina.slow_client"
"""In the ASGI scope of a request whose client was cut off because it did not read its answer."""
CHECKS_PER_TIMEOUT: Final = 10
"""How often a connection is looked at while it may rest."""
CHECK_INTERVAL_RANGE_SECONDS: Final = (0.01, 1.0)
CUT_REASONS: Final = ("head", "body", "reader", "idle", "large_head", "connections")
MAX_SHOWN_CHARS: Final = 100
DISCARDED_TRAILERS: Final = deque[tuple[bytes, bytes]](maxlen=0)
"""Takes the fields behind a chunked body and keeps none. uvicorn would add them to the headers, where they could name a
key or a conversation past a proxy that checked the headers."""

Value = TypeVar("Value")
_Stage = Literal["head", "body", "reader", "idle", "surplus"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The part of the settings that concerns connections. 0: no bound."""

    max_connections: int = 0
    max_head_bytes: int = 65_536
    slow_client_seconds: float = 0.0
    min_bytes_per_second: int = 0
    idle_seconds: float = 75.0


class StopFlag(Protocol):
    """What `threading` and `multiprocessing` call an event."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


class ClientConnections:
    """All connections of a process.

    Attributes:
        stopping: set once the server is about to stop: new ones are still taken, but had better go elsewhere.
        cut_counts: how many were refused or ended before their time, by reason.
    """

    def __init__(self, limits: ConnectionLimits, *, leaving: StopFlag | None = None) -> None:
        self.limits = limits
        self.stopping = leaving or threading.Event()
        self.cut_counts: Counter[str] = Counter()
        self._open: set[ClientConnection] = set()
        self._looking: asyncio.TimerHandle | None = None

    def create_connection(self, *arguments: Any, **named: Any) -> ClientConnection:
        """A new connection, as uvicorn asks for one."""
        return ClientConnection(self, *arguments, **named)

    def add(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more."""
        if self.limits.max_connections and len(self._open) >= self.limits.max_connections:
            return False
        self._open.add(connection)
        if self._looking is None and self.limits.slow_client_seconds:
            self._schedule_check(connection.loop)
        return True

    def discard(self, connection: ClientConnection) -> None:
        self._open.discard(connection)

    def report_to(self, metrics: Metrics) -> None:
        """Have these numbers told with the others."""
        metrics.watch_gauge(CONNECTIONS, lambda: len(self._open))
        for reason in CUT_REASONS:
            metrics.watch_gauge(CUTS, functools.partial(self.cut_counts.__getitem__, reason), reason)

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        least, most = CHECK_INTERVAL_RANGE_SECONDS
        pause_seconds = min(most, max(least, self.limits.slow_client_seconds / CHECKS_PER_TIMEOUT))
        self._looking = loop.call_later(pause_seconds, self._check_timeouts, loop)

    def _check_timeouts(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looking = None
        now = loop.time()
        for connection in list(self._open):
            connection.check_timeout(now)
        if self._open:
            self._schedule_check(loop)


class ClientConnection(HttpToolsProtocol):
    """One connection of a client, with bounds."""

    def __init__(self, connections: ClientConnections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ws_protocol_class = None  # no path speaks WebSocket; its reader would see none of these bounds
        self._connections = connections
        self._head_limit = connections.limits.max_head_bytes
        self._received_bytes = 0
        self._head_bytes = 0
        """Received of a head that is not complete."""
        self._measures_head = False
        self._scope_with_head = self.scope
        """Of the last request whose head is complete."""
        self._refusal: GatewayError | None = None
        self._stage: tuple[_Stage, Any] | None = None
        """What the client is at, and of which request, as of the last look."""
        self._since = 0.0
        self._mark = 0
        """When that began or last went on, and how far it was."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self._connections.add(self):
            most = self._connections.limits.max_connections
            self._send_refusal(
                Overloaded(
                    f"The gateway has {most} connections open, which is as many as it may have.",
                    hint="Try again, or raise `limits.max_connections`.",
                ),
                "connections",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._received_bytes += size
        self._measures_head = self._head_bytes + size > self._head_limit
        super().data_received(data)
        if self.scope is not self._scope_with_head:
            self._head_bytes += size
            if self._head_bytes > self._head_limit and not self.transport.is_closing():
                self._refuse_large_head()
        else:
            self._head_bytes = 0

    def on_headers_complete(self) -> None:
        if self._measures_head and _measure_head(self.url, self.headers) > self._head_limit:
            self._refuse_large_head()
            raise ValueError("the head is too large")  # ends the parsing; nobody sees it
        codings = b", ".join([value for name, value in self.headers if name == b"transfer-encoding"])
        if codings and (codings.lower() != b"chunked" or self.parser.get_http_version() == "1.0"):
            self._refuse_transfer_encoding(codings)
            raise ValueError("the coding is refused")  # as above
        self._scope_with_head = self.scope
        super().on_headers_complete()
        self.headers = DISCARDED_TRAILERS  # type: ignore[assignment]  # all that uvicorn still does is to append to it
        if type(self.cycle) is RequestResponseCycle:  # it has been made just now, and not begun
            self.cycle.__class__ = RequestCycle

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read, unless it was told not to."""
        if self._refusal is None:
            self._send_refusal(InvalidRequest("This is no HTTP request that could be read."), None)

    def check_timeout(self, now: float) -> None:
        """Cut the connection if its client has rested for too long."""
        stage, mark = self._find_stage()
        if stage is None or stage != self._stage:
            self._stage, self._since, self._mark = stage, now, mark
            return
        limits = self._connections.limits
        name = stage[0]
        allowed_seconds = limits.idle_seconds if name == "idle" else limits.slow_client_seconds
        if now - self._since < allowed_seconds:
            return
        if name in ("body", "reader") and self._made_progress(mark, now - self._since, limits.min_bytes_per_second):
            self._since, self._mark = now, mark
            return
        self._cut_connection(name)

    def _find_stage(self) -> tuple[tuple[_Stage, Any] | None, int]:
        """What the client is at: None where it is our turn. With how far it has come, in bytes."""
        cycle, transport = _as_optional(self.cycle), self.transport
        if transport.is_closing():
            return None, 0
        if cycle is not None and not cycle.response_complete:
            if self.flow.write_paused:
                return ("reader", cycle), -transport.get_write_buffer_size()
            if cycle.more_body and not self.flow.read_paused:
                return ("body", cycle), self._received_bytes
            return None, 0
        if transport.get_write_buffer_size():
            return ("reader", cycle), -transport.get_write_buffer_size()
        if self._is_in_head:
            return ("head", self.scope), 0
        if cycle is not None and cycle.more_body:
            return ("surplus", cycle), 0
        return (("idle", cycle), 0) if self.timeout_keep_alive_task is None else (None, 0)

    def _made_progress(self, mark: int, seconds: float, min_bytes_per_second: int) -> bool:
        """Whether enough has moved. A buffer that has grown was empty in between."""
        moved_bytes = mark - self._mark
        return moved_bytes < 0 or (moved_bytes > 0 and moved_bytes >= min_bytes_per_second * seconds)

    def _cut_connection(self, name: _Stage) -> None:
        cycle = _as_optional(self.cycle)
        if name == "reader":
            self._count_cut("reader")
            if cycle is not None:
                cycle.scope[SLOW_CLIENT] = True  # type: ignore[typeddict-unknown-key]  # a name of ours
            self.transport.abort()
        elif name == "idle":
            self._count_cut("idle")
            self.transport.close()
        elif name == "surplus" or (name == "body" and cycle is not None and cycle.response_started):
            self._count_cut("body")
            self.transport.abort()
        else:
            seconds = self._connections.limits.slow_client_seconds
            late = RequestTimedOut(
                f"The request's {name} did not arrive within {seconds:g} seconds, or more slowly than it may.",
                hint="Send it faster, or raise `limits.slow_client_seconds`.",
            )
            self._send_refusal(late, name)

    def _refuse_large_head(self) -> None:
        limit = self._head_limit
        self._send_refusal(
            HeadTooLarge(
                f"The address and the headers of the request are larger than {limit} bytes.",
                hint="Raise `limits.max_head_bytes` to allow it.",
            ),
            "large_head",
        )

    def _refuse_transfer_encoding(self, codings: bytes) -> None:
        shown = codings.decode("latin-1")[:MAX_SHOWN_CHARS]
        self._send_refusal(
            InvalidRequest(
                f"The header Transfer-Encoding is {shown!r}; it must be `chunked` alone, and HTTP/1.0 has none.",
                hint="Send the body as it is, with Content-Length or in chunks.",
            ),
            None,
        )

    def _send_refusal(self, error: GatewayError, reason: str | None) -> None:
        """Answer before, or instead of, the application, and close."""
        self._refusal = error
        if reason is not None:
            self._count_cut(reason)
        self.transport.write(_render_error(error))
        self.transport.close()

    def _count_cut(self, reason: str) -> None:
        self._connections.cut_counts[reason] += 1
        log.debug("cut a connection: %s", reason)

    @property
    def _is_in_head(self) -> bool:
        """Whether a request has begun whose head is not complete."""
        return self.scope is not self._scope_with_head


def _as_optional(value: Value) -> Value | None:
    """What uvicorn declares to be there and sets with the first request."""
    return value


def _measure_head(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


def _render_error(error: GatewayError) -> bytes:
    """A whole answer, after which the connection is closed."""
    body = build_error_body(error)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-content-type-options": "nosniff",
        **build_error_headers(error),
    }
    lines = [f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


_TAB: Final = 9
_CONTROL_CHARACTERS: Final = bytes(code for code in (*range(32), 127) if code != _TAB)
_TOKEN_CHARACTERS: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
"""What the name of a header is made of, in lower case (RFC 9110, 5.1)."""
_LINE_END_BYTES: Final = 2
_send_body: Final = RequestResponseCycle.send
"""Bound here, since each piece of each stream comes by."""


class RequestCycle(RequestResponseCycle):
    """A request and its answer, whose head is checked and written as a whole. There is no access log."""

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]  # whatever can be awaited will do
        """See ASGI. What comes behind the head is uvicorn's."""
        if self.response_started or message["type"] != "http.response.start":
            return _send_body(self, message)
        return self._send_head(message)

    def has_disconnected(self) -> bool:
        """As `receive` would tell it. What comes from a client that had been paused is read on."""
        if self.disconnected or self.response_complete:
            return True
        self.flow.resume_reading()
        return False

    async def _send_head(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        status: int = message["status"]
        headers = [*self.default_headers, *message.get("headers", ())]
        named = dict(headers)
        if not _is_header_name(b"".join(named)):
            headers = [(name.lower(), value) for name, value in headers]
            named = dict(headers)
            if not _is_header_name(b"".join(named)):
                raise RuntimeError("An answer has a header whose name cannot be sent.")
        lines = b"\r\n".join([*map(b": ".join, headers), b""])
        if _count_control_characters(lines) != _LINE_END_BYTES * len(headers):
            raise RuntimeError("An answer has a header that would be read as another one.")
        if named.get(b"transfer-encoding", b"").lower() == b"chunked":
            self.chunked_encoding = True
        elif b"content-length" in named:
            self.chunked_encoding = False
            self.expected_content_length = int(named[b"content-length"])
        elif self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        if b"connection" in named and b"close" in [part.strip() for part in named[b"connection"].lower().split(b",")]:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        self.transport.write(b"%b%b\r\n" % (STATUS_LINE[status], lines))


def _is_header_name(names: bytes) -> bool:
    return not names.translate(None, _TOKEN_CHARACTERS)


def _count_control_characters(lines: bytes) -> int:
    """How many characters there are that could end a line, or do worse."""
    return len(lines) - len(lines.translate(None, _CONTROL_CHARACTERS))
