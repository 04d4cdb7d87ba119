"""Bounds for client connections: how many there are, how large a request's head is, how slowly a client sends and
reads.

uvicorn waits without limit for a head that never ends, a body that trickles in, or a client that does not read. Here
one timer checks all connections of a process, about once a second, so that a single request costs almost nothing.
"""

from __future__ import annotations

import asyncio
import http
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.edge.error_responses import build_error_body, build_error_headers
from app.errors import GatewayError, HeadTooLarge, InvalidRequest, Overloaded, RequestTimedOut
from app.observability.metric_families import CLOSED_CONNECTIONS, CONNECTIONS
from app.observability.metrics import Metrics

log = logging.getLogger(__name__)

SLOW_CLIENT: Final = "concertina.slow_client"
"""Key in the ASGI scope of a request whose connection was cut because the client did not read the answer."""
CHECKS_PER_TIMEOUT: Final = 10
"""How many checks fall into one `slow_client_seconds`."""
CHECK_INTERVAL_RANGE_SECONDS: Final = (0.01, 1.0)
CUT_REASONS: Final = ("head", "body", "reader", "idle", "large_head", "connections")
MAX_SHOWN_CHARS: Final = 100
DISCARDED_TRAILERS: Final = deque[tuple[bytes, bytes]](maxlen=0)
"""A list that discards the trailers of a chunked body. uvicorn would add them to the headers, where they could bring a
key or a conversation id past a proxy that checks the headers."""

Value = TypeVar("Value")
_Stage = Literal["head", "body", "reader", "idle", "surplus"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The settings' limits for connections. 0: no limit."""

    max_connections: int = 0
    max_head_bytes: int = 65_536
    slow_client_seconds: float = 0.0
    min_bytes_per_second: int = 0
    idle_seconds: float = 75.0


class StopFlag(Protocol):
    """The part of `threading.Event` and `multiprocessing.Event` that is used here."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


@dataclass(eq=False)
class ClientConnections:
    """All client connections of a process.

    Args:
        check_interval_range_seconds: the shortest and the longest time between two checks of all connections.

    Attributes:
        stopping: set when the server is about to stop. New connections are still served, but the readiness probe asks
            load balancers to send them elsewhere.
    """

    limits: ConnectionLimits
    stopping: StopFlag = field(default_factory=threading.Event)
    check_interval_range_seconds: tuple[float, float] = CHECK_INTERVAL_RANGE_SECONDS
    _cut_series: dict[str, Counter] = field(default_factory=dict, init=False)
    """How many connections were refused or cut, by reason; empty without metrics."""
    _open: set[ClientConnection] = field(default_factory=set, init=False)
    _check_timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def create_connection(self, *arguments: Any, **named: Any) -> ClientConnection:
        """Makes the protocol object of a new connection, for uvicorn."""
        return ClientConnection(self, *arguments, **named)

    def try_register(self, connection: ClientConnection) -> bool:
        """Registers a connection; False if `max_connections` are open already."""
        if self.limits.max_connections and len(self._open) >= self.limits.max_connections:
            return False
        self._open.add(connection)
        if self._check_timer is None and self.limits.slow_client_seconds:
            self._schedule_check(connection.loop)
        return True

    def unregister(self, connection: ClientConnection) -> None:
        self._open.discard(connection)

    def register_metrics(self, metrics: Metrics) -> None:
        """Reports the number of connections and of cuts as metrics."""
        metrics.watch_gauge(CONNECTIONS, lambda: len(self._open))
        self._cut_series = {reason: metrics.counter_series(CLOSED_CONNECTIONS, reason) for reason in CUT_REASONS}

    def count_cut(self, reason: str) -> None:
        """Counts a connection that was refused or cut."""
        if (series := self._cut_series.get(reason)) is not None:
            series.inc()

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        min_pause_seconds, max_pause_seconds = self.check_interval_range_seconds
        pause_seconds = min(
            max_pause_seconds, max(min_pause_seconds, self.limits.slow_client_seconds / CHECKS_PER_TIMEOUT)
        )
        self._check_timer = loop.call_later(pause_seconds, self._cut_timed_out_connections, loop)

    def _cut_timed_out_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_timer = None
        now = loop.time()
        try:
            for connection in list(self._open):
                connection.cut_if_timed_out(now)
        finally:
            if self._open:
                self._schedule_check(loop)


class ClientConnection(HttpToolsProtocol):
    """One client connection, with limits on its head and its speed."""

    def __init__(self, connections: ClientConnections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ws_protocol_class = None  # no path speaks WebSocket; its reader would see none of these bounds
        self._connections = connections
        self._head_limit = connections.limits.max_head_bytes
        self._received_bytes = 0
        self._head_bytes = 0
        """Bytes received of a head that is not complete."""
        self._measures_head = False
        self._scope_with_head = self.scope
        """The scope of the last request whose head is complete."""
        self._refusal: GatewayError | None = None
        self._stage: tuple[_Stage, Any] | None = None
        """What the client was doing at the last check, and the request that it did it for."""
        self._stage_since = 0.0
        self._progress_mark = 0
        """Monotonic seconds when the stage began or last made progress, and its progress in bytes at that time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self._connections.try_register(self):
            max_connections = self._connections.limits.max_connections
            self._send_refusal(
                Overloaded(
                    f"The gateway has {max_connections} connections open, which is its limit.",
                    hint="Try again, or raise `limits.max_connections`.",
                ),
                "connections",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.unregister(self)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._received_bytes += size
        # A head is measured exactly only if it might be too large: what was received may hold a part of the body.
        self._measures_head = self._head_bytes + size > self._head_limit
        super().data_received(data)
        if self.scope is not self._scope_with_head:
            self._head_bytes += size
            if self._head_bytes > self._head_limit and not self.transport.is_closing():
                self._refuse_large_head()
        else:
            self._head_bytes = 0

    def on_headers_complete(self) -> None:
        if self._measures_head and _measure_request_head(self.url, self.headers) > self._head_limit:
            self._refuse_large_head()
            # httptools turns an exception in a callback into a parser error, which ends the parsing. uvicorn then calls
            # `send_400_response`, which does nothing more, since a refusal is sent.
            raise ValueError("the request head is too large")
        # Any other coding is read differently by different proxies, which allows request smuggling.
        codings = b", ".join([value for name, value in self.headers if name == b"transfer-encoding"])
        if codings and (codings.lower() != b"chunked" or self.parser.get_http_version() == "1.0"):
            self._refuse_transfer_encoding(codings)
            raise ValueError("the transfer coding is not supported")  # as above
        self._scope_with_head = self.scope
        super().on_headers_complete()
        self.headers = DISCARDED_TRAILERS  # type: ignore[assignment]  # all that uvicorn still does is to append to it

    def send_400_response(self, msg: str) -> None:
        """Answers a request that the parser could not read, unless a refusal is sent already."""
        if self._refusal is None:
            self._send_refusal(InvalidRequest("This is not a valid HTTP request."), None)

    def cut_if_timed_out(self, now: float) -> None:
        """Cuts the connection if its client has made too little progress for too long."""
        stage, mark = self._find_stage_and_progress()
        if stage is None or stage != self._stage:
            self._stage, self._stage_since, self._progress_mark = stage, now, mark
            return
        limits = self._connections.limits
        name = stage[0]
        allowed_seconds = limits.idle_seconds if name == "idle" else limits.slow_client_seconds
        if now - self._stage_since < allowed_seconds:
            return
        if name in ("body", "reader") and self._has_made_progress(
            mark, now - self._stage_since, limits.min_bytes_per_second
        ):
            self._stage_since, self._progress_mark = now, mark
            return
        self._cut_connection(name)

    def _find_stage_and_progress(self) -> tuple[tuple[_Stage, Any] | None, int]:
        """Returns what the client is doing and its progress in bytes. The stage is None while the gateway must act:
        then no time counts against the client."""
        cycle, transport = _as_optional(self.cycle), self.transport
        if transport.is_closing():
            return None, 0
        if cycle is not None and not cycle.response_complete:
            if self.flow.write_paused:
                # Progress of a reader is a shrinking buffer, hence the minus.
                return ("reader", cycle), -transport.get_write_buffer_size()
            if cycle.more_body and not self.flow.read_paused:
                return ("body", cycle), self._received_bytes
            return None, 0
        if transport.get_write_buffer_size():
            return ("reader", cycle), -transport.get_write_buffer_size()
        if self._is_in_head:
            return ("head", self.scope), 0
        # The answer is complete, but the client still sends a body that nobody reads.
        if cycle is not None and cycle.more_body:
            return ("surplus", cycle), 0
        # uvicorn's own timer for idle connections starts after a first response; before it, nothing else would end one.
        return (("idle", cycle), 0) if self.timeout_keep_alive_task is None else (None, 0)

    def _has_made_progress(self, mark: int, seconds: float, min_bytes_per_second: int) -> bool:
        """Returns whether enough bytes moved since the last mark. A write buffer that has grown was empty in between,
        so the client has read all of it."""
        moved_bytes = mark - self._progress_mark
        return moved_bytes < 0 or (moved_bytes > 0 and moved_bytes >= min_bytes_per_second * seconds)

    def _cut_connection(self, name: _Stage) -> None:
        cycle = _as_optional(self.cycle)
        if name == "reader":
            # `abort` and not `close`: `close` would first wait until the buffer is sent, to a client that does not
            # read.
            self._count_cut("reader")
            if cycle is not None:
                cycle.scope[SLOW_CLIENT] = True  # type: ignore[typeddict-unknown-key]  # a name of ours
            self.transport.abort()
        elif name == "idle":
            self._count_cut("idle")
            self.transport.close()
        elif name == "surplus" or (name == "body" and cycle is not None and cycle.response_started):
            self._count_cut("body")
            self.transport.abort()  # a response has begun, so no error can be sent
        else:
            seconds = self._connections.limits.slow_client_seconds
            late = RequestTimedOut(
                f"The request's {name} did not arrive within {seconds:g} seconds, or arrived too slowly.",
                hint="Send it faster, or raise `limits.slow_client_seconds`.",
            )
            self._send_refusal(late, name)

    def _refuse_large_head(self) -> None:
        limit = self._head_limit
        self._send_refusal(
            HeadTooLarge(
                f"The address and the headers of the request are larger than {limit} bytes.",
                hint="Send a shorter address, or fewer or shorter headers.",
            ),
            "large_head",
        )

    def _refuse_transfer_encoding(self, codings: bytes) -> None:
        quoted_codings = codings.decode("latin-1")[:MAX_SHOWN_CHARS]
        self._send_refusal(
            InvalidRequest(
                f"The header Transfer-Encoding is {quoted_codings!r}; "
                "it must be `chunked` alone, and HTTP/1.0 has none.",
                hint="Send the body without a coding, with Content-Length or in chunks.",
            ),
            None,
        )

    def _send_refusal(self, error: GatewayError, reason: str | None) -> None:
        """Sends an error in the application's place and closes the connection.

        Args:
            reason: counted in the metrics; None: not counted.
        """
        self._refusal = error
        if reason is not None:
            self._count_cut(reason)
        self.transport.write(_render_error_response(error))
        self.transport.close()

    def _count_cut(self, reason: str) -> None:
        self._connections.count_cut(reason)
        log.debug("closed a connection early: %s", reason)

    @property
    def _is_in_head(self) -> bool:
        """Returns whether a request has begun whose head is not complete."""
        return self.scope is not self._scope_with_head


def _as_optional(value: Value) -> Value | None:
    """Returns a value as optional: uvicorn declares it as always set, but sets it with the first request."""
    return value


def _measure_request_head(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


def _render_error_response(error: GatewayError) -> bytes:
    """Renders a complete HTTP response that closes the connection."""
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
