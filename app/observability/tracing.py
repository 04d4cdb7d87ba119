"""Traces: a request and its steps as spans of time. What is here costs next to nothing while nobody traces.

The edge is handed a `Tracing` and begins a span for each request; the rooms below find it as `current_span()` and hang
their own beneath it, the way log lines find their request. A span tells names, numbers and claims, never a message's
content, a key or a tenant.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute]
Kind = Literal["internal", "client"]
RawHeaders = Iterable[tuple[bytes, bytes]]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CANCELLED: Final = "cancelled"
"""`error.type` of work that nobody waits for any more."""
CONVERSATION: Final = "gen_ai.conversation.id"
STREAMED: Final = "gen_ai.request.stream"
COMPACTED: Final = "gen_ai.conversation.compacted"
"""Whether the model is shown summaries in place of a part of the conversation."""


class Span:
    """A stretch of work. This one is recorded nowhere, which is what every span is while nothing is traced.

    As a context manager it is the current span within, and ends with it; what is raised through it is its error.

    Attributes:
        is_recording: what it is told goes anywhere. Ask before gathering what costs something to know.
        ids: `trace_id` and `span_id` for log lines; empty where there is no trace.
    """

    __slots__ = ()

    is_recording: bool = False
    ids: Mapping[str, str] = {}

    def start_child(self, name: str, kind: Kind = "internal", attributes: Attributes | None = None) -> Span:
        """A span beneath this one, begun now."""
        return self

    def start_linked_trace(self, name: str) -> Span:
        """The first span of a trace of its own, for work that this one caused and does not wait for."""
        return self

    def set(self, attributes: Attributes) -> None:
        """Say something of this span; after its end nothing is heard."""

    def set_shared(self, attributes: Attributes) -> None:
        """Say something of this span and of every model call of its trace that begins from now on."""

    def rename(self, name: str) -> None:
        """Call it by what it turned out to be."""

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something that happened just now."""

    def fail(self, error_type: str) -> None:
        """It has not come to what it was begun for. The first reason stands."""

    def trace_headers(self) -> Mapping[str, str]:
        """W3C trace context for what is called within this span."""
        return {}

    def end(self) -> None:
        """It is over; the first time counts."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        return None


NO_SPAN: Final = Span()
_current: ContextVar[Span] = ContextVar("current_span", default=NO_SPAN)


current_span: Final[Callable[[], Span]] = _current.get
"""The innermost span that this task works in. Bound, since every request asks half a dozen times."""


def make_current(span: Span) -> Token[Span]:
    """Work in a span from here on; for implementations of `Span`."""
    return _current.set(span)


def restore_span(token: Token[Span]) -> None:
    """Work in the span before again."""
    _current.reset(token)


def error_type_name(error: BaseException) -> str:
    """The name of an error's class; messages stay out of spans."""
    return CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__


def trace_span(
    name: str,
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Coroutine[Any, Any, Result]]]:
    """Give each run of a coroutine function a span beneath the current one."""

    def decorate(
        function: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Coroutine[Any, Any, Result]:
            work = function(*args, **kwargs)
            return _run_in_span(name, work) if _current.get().is_recording else work

        return run

    return decorate


async def _run_in_span(name: str, work: Coroutine[Any, Any, Result]) -> Result:
    with _current.get().start_child(name):
        return await work


class Tracing(Protocol):
    """Begins traces. Made once for each application, and closed with it.

    Attributes:
        is_on: whether any request is traced.
    """

    is_on: bool

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> Span:
        """The span of a request, beneath the client's own where its headers name one.

        Args:
            headers: of the request, as ASGI gives them.
        """

    async def aclose(self) -> None:
        """Deliver what is left, for a bounded time."""


class NoTracing:
    """Nobody traces."""

    is_on = False

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> Span:
        return NO_SPAN

    async def aclose(self) -> None:
        return None
