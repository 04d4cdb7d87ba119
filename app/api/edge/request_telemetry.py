"""Each request as it is seen from outside: a span around it, and when it is over its numbers and its log line."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from app.api.edge.asgi_front import CHAT_PATH, Front, asks_for_completion
from app.api.edge.error_responses import CLIENT_CLOSED_REQUEST
from app.errors import UpstreamRefused
from app.observability import metric_families
from app.observability.metric_families import CONSOLE, OTHER, is_application_endpoint
from app.observability.metrics import Metrics, Observed
from app.observability.request_facts import begin_facts, short, tell
from app.observability.tracing import CANCELLED, CONVERSATION, NO_SPAN, Span, Tracing

PROBES: Final = ("/healthz", "/readyz", "/metrics")
"""Asked every few seconds by machines: told of when they fail, and never traced."""
CONSOLE_HEADER: Final = b"x-concertina-console"
"""Sent by the console's pages: what they read is no traffic of applications."""
EVENT_STREAM: Final = b"text/event-stream"
FIRST_REFUSAL: Final = 400
FIRST_FAILURE: Final = 500
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Watched:
    """An ASGI application whose requests are counted, traced and told of.

    Args:
        app: whose `application` is this one's.
        seconds: monotonic.
        tells: whether a line is written for each request.
    """

    def __init__(
        self, app: Front, metrics: Metrics, tracing: Tracing, *, seconds: Callable[[], float], tells: bool
    ) -> None:
        self._app = app
        self.application = app.application
        self._metrics = metrics
        self._tracing = tracing
        self._seconds = seconds
        self._tells = tells
        self._watches = metrics.is_on or tells or tracing.is_on
        self._of_requests: dict[tuple[str, int, bool], _Series] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._watches:
            await self._app(scope, receive, send)
            return
        span = NO_SPAN
        if self._tracing.is_on and scope["path"] not in PROBES:
            span = self._tracing.request(_method(scope), scope["headers"], _asked(scope))
        watch = _Watch(send, span, self._metrics, self._seconds)
        is_chat = asks_for_completion(scope)
        in_flight = 1.0 if is_chat else 0.0
        self._metrics.in_flight.add(in_flight)
        with span:
            try:
                await self._app(scope, receive, watch.send)
            finally:
                self._metrics.in_flight.add(-in_flight)
                if watch.streams:
                    self._metrics.streams.add(-1)
                self._end(scope, watch)

    def _end(self, scope: Scope, watch: _Watch) -> None:
        """The request is over, however it ended."""
        duration, route = self._seconds() - watch.began, route_of(scope)
        if self._metrics.is_on:
            self._count(_endpoint(scope, route), watch, duration)
        if watch.span.is_recording:
            _finish(watch, _method(scope), route)
        if self._tells and (watch.status >= FIRST_FAILURE or scope["path"] not in PROBES):
            _tell(watch, _method(scope), route, duration)

    def _count(self, endpoint: str, watch: _Watch, duration: float) -> None:
        key = endpoint, watch.status, watch.streams
        series = self._of_requests.get(key)
        if series is None:
            series = self._of_requests[key] = _Series(self._metrics, *key)
        series.requests.add()
        series.seconds.add(duration)
        if series.first_byte is not None and watch.first_byte is not None:
            series.first_byte.add(watch.first_byte)
        if not watch.is_complete:
            self._metrics.counted(metric_families.DISCONNECTS).add()
        if (error := watch.facts.error) is not None:
            self._metrics.error(error.name, error.status, is_of_application=is_application_endpoint(endpoint))
        elif watch.status >= FIRST_REFUSAL and watch.status != CLIENT_CLOSED_REQUEST:
            # Errors of ours are noted. This answer is a provider's, on a path that is passed through.
            self._metrics.error(UpstreamRefused.name, watch.status)


class _Series:
    """Where requests are counted that went to the same endpoint and ended alike: found once."""

    __slots__ = ("first_byte", "requests", "seconds")

    def __init__(self, metrics: Metrics, endpoint: str, status: int, streams: bool) -> None:
        stream = "true" if streams else "false"
        self.requests = metrics.counted(metric_families.REQUESTS, endpoint, str(status))
        self.seconds = metrics.observed(metric_families.REQUEST_SECONDS, endpoint, stream)
        self.first_byte: Observed | None = None
        if endpoint == CHAT_PATH:
            self.first_byte = metrics.observed(metric_families.FIRST_BYTE_SECONDS, stream)


class _Watch:
    """An answer on its way out.

    Attributes:
        began: monotonic seconds.
        first_byte: seconds from then to the first piece of the body.
        status: of the answer; 499 until its head is sent.
        streams: it is a stream of events.
        is_complete: the last piece was handed to the server.
    """

    __slots__ = (
        *("_metrics", "_pass_on", "_seconds"),
        *("began", "facts", "first_byte", "is_complete", "span", "status", "streams"),
    )

    def __init__(self, send: Send, span: Span, metrics: Metrics, seconds: Callable[[], float]) -> None:
        self._pass_on = send
        self._metrics = metrics
        self._seconds = seconds
        self.span = span
        self.facts = begin_facts()
        self.began = seconds()
        self.first_byte: float | None = None
        self.status = CLIENT_CLOSED_REQUEST
        self.streams = False
        self.is_complete = False

    def send(self, message: Message) -> Awaitable[None]:
        """Look at a message and hand it on. No coroutine of its own: every piece of a stream comes by here."""
        if message["type"] == "http.response.start":
            self._begin(message)
        else:
            if self.first_byte is None:
                self.first_byte = self._seconds() - self.began
                if self.span is not NO_SPAN:
                    self.span.event("first_byte")
            if not message.get("more_body", False):
                self.is_complete = True
        return self._pass_on(message)

    def _begin(self, message: Message) -> None:
        self.status = message["status"]
        headers, facts = dict(message.get("headers", ())), self.facts
        kind = headers.get(b"content-type")
        if kind is not None and kind.startswith(EVENT_STREAM):
            self.streams = True
            self._metrics.streams.add()
        facts.request_id = _text(headers.get(b"x-request-id"))
        if facts.context_status is None:
            facts.context_status = _text(headers.get(b"x-context-status"))
        if facts.conversation_id is None:
            facts.conversation_id = _text(headers.get(b"x-conversation-id"))


def _finish(watch: _Watch, method: str, route: str | None) -> None:
    """What the span of a request can say at its end."""
    facts, span = watch.facts, watch.span
    told: dict[str, str | int] = {}
    if watch.status != CLIENT_CLOSED_REQUEST:
        told["http.response.status_code"] = watch.status
    if route is not None:
        span.rename(f"{method} {route}")
        told |= {"http.route": route, "url.path": route}
    if facts.conversation_id is not None:
        told[CONVERSATION] = facts.conversation_id
    if facts.request_id is not None:
        told["concertina.request_id"] = facts.request_id
    span.set(told)
    if not watch.is_complete:
        span.fail(CANCELLED)
    elif watch.status >= FIRST_FAILURE or _ended_in_error(watch):
        span.fail((facts.error and facts.error.code) or str(watch.status))


def _tell(watch: _Watch, method: str, route: str | None, duration: float) -> None:
    """The line of a request; numbers that there are not, are left out."""
    told: dict[str, Any] = {"method": method, "route": route, "status": watch.status, "duration_ms": _ms(duration)}
    if watch.first_byte is not None:
        told["first_byte_ms"] = _ms(watch.first_byte)
    if not watch.is_complete:
        told["cut"] = True
    failed = watch.status >= FIRST_FAILURE or _ended_in_error(watch)
    if watch.span is not NO_SPAN:
        told.update(watch.span.ids)
    tell(watch.facts, logging.WARNING if failed else logging.INFO, told)


def _ended_in_error(watch: _Watch) -> bool:
    """Whether a client was told of an error after its answer had begun well."""
    return watch.facts.error is not None and watch.status < FIRST_REFUSAL


def _asked(scope: Scope) -> dict[str, str | int]:
    return {
        "http.request.method": _method(scope),
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }


def route_of(scope: MutableMapping[str, Any]) -> str | None:
    """The path as it was declared, `/v1/conversations/{id}`: what a client put into it is left out. None where no route
    answers to it."""
    if scope["path"] == CHAT_PATH:
        return CHAT_PATH
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None


def _endpoint(scope: Scope, route: str | None) -> str:
    """The label `endpoint`: the route, or what stands for several."""
    is_reading = scope["method"] in ("GET", "HEAD")
    if is_reading and any(name == CONSOLE_HEADER for name, _ in scope["headers"]):
        return CONSOLE
    return route or OTHER


def _method(scope: Scope) -> str:
    method = scope["method"]
    return method if method in METHODS else "_OTHER"


def _text(value: bytes | None) -> str | None:
    return None if value is None else short(value.decode("latin-1"))


def _ms(seconds: float) -> float:
    return int(seconds * 1_000_000 + 0.5) / 1000  # `round` takes three times as long
