"""Each request as it is seen from outside: a span around it, and a log line when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from app.api.errors import CLIENT_CLOSED_REQUEST
from app.api.front import CHAT_PATH, Front
from app.observability.requests import RequestFacts, begin_facts, tell
from app.observability.tracing import CANCELLED, NO_SPAN, Span, Tracing

PROBES: Final = ("/healthz", "/readyz", "/metrics")
"""Asked every few seconds by machines: told of when they fail, and never traced."""
_NOTED_HEADERS: Final = {
    b"x-request-id": "request_id",
    b"x-context-status": "context_status",
    b"x-conversation-id": "conversation_id",
}
FIRST_FAILURE: Final = 500
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Watched:
    """An ASGI application whose requests are traced and told of.

    Args:
        app: whose `application` is this one's.
        seconds: monotonic.
        tells: whether a line is written for each request.
    """

    def __init__(self, app: Front, tracing: Tracing, *, seconds: Callable[[], float], tells: bool) -> None:
        self._app = app
        self.application = app.application
        self._tracing = tracing
        self._seconds = seconds
        self._tells = tells

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (self._tells or self._tracing.is_on):
            await self._app(scope, receive, send)
            return
        is_probe, span = scope["path"] in PROBES, NO_SPAN
        if self._tracing.is_on and not is_probe:
            span = self._tracing.request(_method(scope), scope["headers"], _asked(scope))
        if not self._tells and not span.is_recording:
            with span:
                await self._app(scope, receive, send)
            return
        watch = _Watch(send, span, begin_facts(), self._seconds)
        with span:
            try:
                await self._app(scope, receive, watch.send)
            finally:
                if span.is_recording:
                    _finish(span, scope, watch)
                if self._tells and not (is_probe and watch.status < FIRST_FAILURE):
                    self._tell(scope, watch)

    def _tell(self, scope: Scope, watch: _Watch) -> None:
        numbers: dict[str, Any] = {"duration_ms": _ms(self._seconds() - watch.began)}
        if watch.first_byte is not None:
            numbers["first_byte_ms"] = _ms(watch.first_byte - watch.began)
        if not watch.is_complete:
            numbers["cut"] = True
        tell(
            watch.facts,
            ids=watch.span.ids,
            level=logging.INFO if watch.status < FIRST_FAILURE else logging.WARNING,
            method=_method(scope),
            route=route_of(scope),
            status=watch.status,
            **numbers,
        )


class _Watch:
    """An answer on its way out.

    Attributes:
        began, first_byte: monotonic seconds; the first byte is that of the body.
        is_complete: the last byte was handed to the server.
    """

    __slots__ = ("_pass_on", "_seconds", "began", "facts", "first_byte", "is_complete", "span", "status")

    def __init__(self, send: Send, span: Span, facts: RequestFacts, seconds: Callable[[], float]) -> None:
        self._pass_on = send
        self._seconds = seconds
        self.span = span
        self.facts = facts
        self.began = seconds()
        self.first_byte: float | None = None
        self.status = CLIENT_CLOSED_REQUEST
        self.is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
        elif self.first_byte is None:
            self.first_byte = self._seconds()
            self.span.event("first_byte")
            self.is_complete = not message.get("more_body", False)
        elif not message.get("more_body", False):
            self.is_complete = True
        await self._pass_on(message)

    def _begin(self, message: Message) -> None:
        self.status = message["status"]
        facts = self.facts
        for name, value in message.get("headers", ()):
            noted = _NOTED_HEADERS.get(name)
            if noted is not None and getattr(facts, noted) is None:
                setattr(facts, noted, value.decode("latin-1"))


def _asked(scope: Scope) -> dict[str, str | int]:
    return {
        "http.request.method": _method(scope),
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }


def _finish(span: Span, scope: Scope, watch: _Watch) -> None:
    """What is known at the end: the route, and how the request ended."""
    facts, route = watch.facts, route_of(scope)
    told: dict[str, str | int] = {}
    if watch.status != CLIENT_CLOSED_REQUEST:
        told["http.response.status_code"] = watch.status
    if route is not None:
        span.rename(f"{_method(scope)} {route}")
        told |= {"http.route": route, "url.path": route}
    if facts.conversation_id is not None:
        told["gen_ai.conversation.id"] = facts.conversation_id
    if facts.request_id is not None:
        told["concertina.request_id"] = facts.request_id
    span.set(told)
    if not watch.is_complete:
        span.fail(CANCELLED)
    elif watch.status >= FIRST_FAILURE or (facts.error is not None and watch.status < 400):
        span.fail(facts.error or str(watch.status))


def route_of(scope: MutableMapping[str, Any]) -> str | None:
    """The path as it was declared, `/v1/conversations/{id}`: what a client put into it is left out. None where no route
    answers to it."""
    if scope["path"] == CHAT_PATH:
        return CHAT_PATH
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else None


def _method(scope: Scope) -> str:
    method = scope["method"]
    return method if method in METHODS else "_OTHER"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
