"""Observes each request from outside: opens a span, and at the end counts the request, writes its log line and adds it
to the requests that are kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from app.api.edge.error_responses import CLIENT_CLOSED_REQUEST
from app.api.edge.headers import REQUEST_ID_SCOPE_KEY
from app.errors import UpstreamRefused
from app.observability import metric_families
from app.observability.log import MAX_FIELD_CHARS
from app.observability.metric_families import CONSOLE_LABEL, MODEL_CALL_ENDPOINTS, OTHER_LABEL, is_application_endpoint
from app.observability.metrics import Metrics
from app.observability.request_record import EndedRequest, RequestRecord, begin_request_record, log_request
from app.observability.tracing import (
    CANCELLED_ERROR_TYPE,
    CONVERSATION_ATTRIBUTE,
    Span,
    Tracing,
    current_span_ids,
    fail_span,
    run_in_span,
)

PROBE_PATHS: Final = ("/healthz", "/readyz", "/metrics")
"""Paths that machines request every few seconds: logged only if they fail, and never traced."""
CONSOLE_FILES: Final = ("/console/css/", "/console/js/", "/console/vendor/")
"""The folders of the console's files, of which a page loads nearly a hundred."""
CONSOLE_HEADER: Final = b"x-concertina-console"
"""Header of the console's pages. Their reads are counted apart from those of applications."""
EVENT_STREAM: Final = b"text/event-stream"
FIRST_ERROR_STATUS: Final = 400
FIRST_SERVER_ERROR_STATUS: Final = 500
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "_OTHER"
"""OpenTelemetry's word for a method that is not in `METHODS`."""


@dataclass(eq=False)
class RequestTelemetry:
    """An ASGI application that counts, traces and logs the requests of another one.

    Args:
        application: answers the requests.
        seconds: a monotonic clock.
        logs_requests: whether a log line is written for each request.
        keep_request: keeps a model call that has ended; None: none are kept.
        unix_seconds: returns the time as Unix seconds.
    """

    application: FastAPI
    metrics: Metrics
    tracing: Tracing
    _: KW_ONLY
    seconds: Callable[[], float]
    logs_requests: bool
    keep_request: Callable[[EndedRequest], None] | None = None
    unix_seconds: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._is_observing = (
            self.metrics.is_on or self.logs_requests or self.tracing.is_on or self.keep_request is not None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._is_observing:
            await self.application(scope, receive, send)
            return
        if not self.tracing.is_on or scope["path"] in PROBE_PATHS:
            await self._observe_request(scope, receive, send, None)
            return
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        attributes = {
            "http.request.method": method,
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", "1.1"),
        }
        started = self.tracing.start_request_span(method, scope["headers"], attributes)
        with run_in_span(started):
            await self._observe_request(scope, receive, send, started.span if started.is_recorded else None)

    async def _observe_request(self, scope: Scope, receive: Receive, send: Send, span: Span | None) -> None:
        watch = _ResponseObserver(send, self.metrics, span, begin_request_record(self.seconds, self.unix_seconds()))
        is_model_call = scope["path"] in MODEL_CALL_ENDPOINTS and scope["method"] == "POST"
        if is_model_call:
            self.metrics.in_flight.inc()
        try:
            await self.application(scope, receive, watch.send)
        finally:
            if is_model_call:
                self.metrics.in_flight.dec()
            if watch.is_stream:
                self.metrics.streams.dec()
            self._finish_request(scope, watch)

    def _finish_request(self, scope: Scope, watch: _ResponseObserver) -> None:
        """Counts, traces and logs a request that is over, however it ended."""
        duration, method = self.seconds() - watch.record.started_at, scope["method"]
        route = scope["path"] if scope["path"] in MODEL_CALL_ENDPOINTS else _find_route_path(scope)
        if self.metrics.is_on:
            is_console = method in ("GET", "HEAD") and any(name == CONSOLE_HEADER for name, _ in scope["headers"])
            self._count_request(CONSOLE_LABEL if is_console else route or OTHER_LABEL, watch, duration)
        method = method if method in METHODS else OTHER_METHOD
        if watch.span is not None:
            _finish_request_span(watch, watch.span, method, route)
        if self.logs_requests and not _is_quiet(scope["path"], watch.status):
            _log_request(watch, method, route, duration)
        if self.keep_request is not None and scope["path"] in MODEL_CALL_ENDPOINTS and scope["method"] == "POST":
            request_id = watch.record.facts.request_id or scope.get(REQUEST_ID_SCOPE_KEY)
            self.keep_request(_build_ended_request(watch, request_id, scope["path"], duration))
        # Timers that the request has set, such as that of its idle connection, keep the context in which the record is.
        watch.record.steps, watch.record.turn = [], None

    def _count_request(self, endpoint: str, watch: _ResponseObserver, duration: float) -> None:
        stream = "true" if watch.is_stream else "false"
        self.metrics.counter_series(metric_families.REQUESTS, endpoint, str(watch.status)).inc()
        self.metrics.histogram_series(metric_families.REQUEST_SECONDS, endpoint, stream).observe(duration)
        if endpoint in MODEL_CALL_ENDPOINTS and watch.first_byte_seconds is not None:
            first_byte = self.metrics.histogram_series(metric_families.FIRST_BYTE_SECONDS, stream)
            first_byte.observe(watch.first_byte_seconds)
        if not watch.is_complete:
            self.metrics.counter_series(metric_families.DISCONNECTS).inc()
        if (error := watch.record.facts.error) is not None:
            self.metrics.count_error(error.name, error.status, is_of_application=is_application_endpoint(endpoint))
        elif watch.status >= FIRST_ERROR_STATUS and watch.status != CLIENT_CLOSED_REQUEST:
            # The gateway's own errors are recorded in `facts`. This one is a provider's answer, passed through.
            self.metrics.count_error(UpstreamRefused.name, watch.status)


class _ResponseObserver(msgspec.Struct):
    """Observes the messages of one answer.

    Attributes:
        span: None if the request is not recorded.
        first_byte_seconds: seconds from the start to the first piece of the body.
        status: the answer's status; 499 until its head is sent.
        is_stream: the answer is a stream of events.
        is_complete: the last piece was handed to the server.
    """

    _send: Send
    _metrics: Metrics
    span: Span | None
    record: RequestRecord
    first_byte_seconds: float | None = None
    status: int = CLIENT_CLOSED_REQUEST
    is_stream: bool = False
    is_complete: bool = False

    def send(self, message: Message) -> Awaitable[None]:
        """Observes a message and sends it. It is no coroutine, which would cost time with every frame of every
        stream."""
        if message["type"] == "http.response.start":
            self._record_response_start(message)
        else:
            if self.first_byte_seconds is None:
                self.first_byte_seconds = self.record.seconds() - self.record.started_at
                if self.span is not None:
                    self.span.add_event("first_byte")
            if not message.get("more_body", False):
                self.is_complete = True
        return self._send(message)

    def _record_response_start(self, message: Message) -> None:
        self.status = message["status"]
        headers, facts = dict(message.get("headers", ())), self.record.facts
        kind = headers.get(b"content-type")
        if kind is not None and kind.startswith(EVENT_STREAM):
            self.is_stream = True
            self._metrics.streams.inc()
        facts.request_id = _read_name(headers, b"x-request-id")
        if facts.context_status is None:
            facts.context_status = _read_name(headers, b"x-context-status")
        if facts.conversation_id is None:
            facts.conversation_id = _read_name(headers, b"x-conversation-id")


def _finish_request_span(watch: _ResponseObserver, span: Span, method: str, route: str | None) -> None:
    """Sets the attributes and the outcome of a request's span."""
    facts = watch.record.facts
    attributes: dict[str, str | int] = {}
    if watch.status != CLIENT_CLOSED_REQUEST:
        attributes["http.response.status_code"] = watch.status
    if route is not None:
        span.update_name(f"{method} {route}")
        attributes |= {"http.route": route, "url.path": route}
    if facts.conversation_id is not None:
        attributes[CONVERSATION_ATTRIBUTE] = facts.conversation_id
    if facts.request_id is not None:
        attributes["concertina.request_id"] = facts.request_id
    span.set_attributes(attributes)
    if not watch.is_complete:
        fail_span(span, CANCELLED_ERROR_TYPE)
    elif _has_failed(watch):
        fail_span(span, (facts.error and facts.error.code) or str(watch.status))


def _log_request(watch: _ResponseObserver, method: str, route: str | None, duration: float) -> None:
    """Writes the log line of a request; absent values are left out."""
    # `round` takes three times as long.
    log_fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": watch.status,
        "duration_ms": int(duration * 1_000_000 + 0.5) / 1000,
    }
    if watch.first_byte_seconds is not None:
        log_fields["first_byte_ms"] = int(watch.first_byte_seconds * 1_000_000 + 0.5) / 1000
    if not watch.is_complete:
        log_fields["cut"] = True
    log_fields.update(current_span_ids())
    log_request(watch.record.facts, logging.WARNING if _has_failed(watch) else logging.INFO, log_fields)


def _build_ended_request(
    watch: _ResponseObserver, request_id: str | None, endpoint: str, duration: float
) -> EndedRequest:
    record = watch.record
    return EndedRequest(
        request_id,
        endpoint,
        watch.status,
        watch.is_complete,
        record.started_unix,
        record.started_at,
        duration,
        watch.first_byte_seconds,
        record.facts.tenant,
        record.key_id,
        record.facts,
        record.turn,
        record.steps,
        record.answer,
        record.answer_id,
    )


def _has_failed(watch: _ResponseObserver) -> bool:
    """Returns whether the gateway or a provider failed, also after the status was sent, inside a stream."""
    if watch.status >= FIRST_SERVER_ERROR_STATUS:
        return True
    return watch.record.facts.error is not None and watch.status < FIRST_ERROR_STATUS


def _is_quiet(path: str, status: int) -> bool:
    """Returns whether a request writes no log line: a probe, or a file of the console, that has not failed."""
    if path.startswith(CONSOLE_FILES):
        return status < FIRST_ERROR_STATUS
    return path in PROBE_PATHS and status < FIRST_SERVER_ERROR_STATUS


def _find_route_path(scope: MutableMapping[str, Any]) -> str | None:
    """Returns the declared path of a request's route, such as `/v1/conversations/{id}`; None if no route matches. What
    the client put into the path is left out: it would make a label for each value, and may be confidential."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None


def _read_name(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """Returns the value of a header; None if it is absent, or so long that it may be content."""
    value = headers.get(name)
    return value.decode("latin-1") if value is not None and len(value) <= MAX_FIELD_CHARS else None
