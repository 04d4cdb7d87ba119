"""Declares spans and traces, and implements them for a gateway that does not trace, at next to no cost.

The edge gets a `Tracing` and starts a span for each request. The rooms below find it as `current_span()`, in a context
variable, and start child spans. A span has names, numbers and booleans, never content, a key or a tenant.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]
SpanKind = Literal["internal", "client"]
RawHeaders = Iterable[tuple[bytes, bytes]]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CANCELLED_ERROR_TYPE: Final = "cancelled"
"""The `error.type` of cancelled work."""
CONVERSATION_ATTRIBUTE: Final = "gen_ai.conversation.id"
STREAMED_ATTRIBUTE: Final = "gen_ai.request.stream"
COMPACTED_ATTRIBUTE: Final = "gen_ai.conversation.compacted"
"""The attribute that says whether the view has summaries in place of a part of the conversation."""


class Span:
    """A span: a timed piece of work. This class records nothing; it is every span's class while tracing is off.

    As a context manager it makes itself the current span, and ends at the exit. An exception that passes is its error.

    Attributes:
        is_recording: whether attributes and events are recorded. Callers ask before they compute them.
        ids: `trace_id` and `span_id` for log lines; empty if the span is not recorded.
    """

    __slots__ = ()

    is_recording: bool = False
    ids: Mapping[str, str] = {}

    def start_child(self, name: str, kind: SpanKind = "internal", attributes: Attributes | None = None) -> Span:
        """Starts a child span."""
        return self

    def start_linked_trace(self, name: str) -> Span:
        """Starts a new trace that is linked to this span, for work that this span causes but does not wait for."""
        return self

    def set(self, attributes: Attributes) -> None:
        """Sets attributes of this span. After its end this has no effect."""

    def set_shared(self, attributes: Attributes) -> None:
        """Sets attributes of this span, and of every model call that starts in its trace from now on."""

    def rename(self, name: str) -> None:
        """Renames the span, for example to the route when that is known."""

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Adds an event with the current time."""

    def fail(self, error_type: str) -> None:
        """Marks the span as failed. Only the first `error_type` is kept."""

    def trace_headers(self) -> Mapping[str, str]:
        """Returns the W3C trace context headers for calls within this span."""
        return {}

    def end(self) -> None:
        """Ends the span. Only the first call has an effect."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        return None


NO_SPAN: Final = Span()
_current: ContextVar[Span] = ContextVar("current_span", default=NO_SPAN)


current_span: Final[Callable[[], Span]] = _current.get
"""Returns the current span of this task. Bound to save a call, because each request asks half a dozen times."""


def make_span_current(span: Span) -> Token[Span]:
    """Makes a span the current one; for implementations of `Span`, and for spans that end later than the block does."""
    return _current.set(span)


def restore_span(token: Token[Span]) -> None:
    """Makes the span before the current one again."""
    _current.reset(token)


def error_type_name(error: BaseException) -> str:
    """Returns the name of an error's class. Its message stays out of spans, because it may contain content."""
    return CANCELLED_ERROR_TYPE if isinstance(error, asyncio.CancelledError) else type(error).__name__


def trace_span(
    name: str,
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Coroutine[Any, Any, Result]]]:
    """Decorates a coroutine function: each run gets a child span of the current span."""

    def decorate(
        function: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Coroutine[Any, Any, Result]:
            # A plain function that returns the coroutine: without a recorded span a call costs no further frame.
            work = function(*args, **kwargs)
            return _run_in_span(name, work) if _current.get().is_recording else work

        return run

    return decorate


async def _run_in_span(name: str, work: Coroutine[Any, Any, Result]) -> Result:
    with _current.get().start_child(name):
        return await work


class Tracing(Protocol):
    """Starts traces. Each application has one, and closes it at its end.

    Attributes:
        is_on: whether any request is traced.
    """

    is_on: bool

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> Span:
        """Starts the span of a request, as a child of the client's span if the headers name one.

        Args:
            name: the name of the span.
            headers: the request's headers, as ASGI has them.
            attributes: the first attributes.
        """

    async def aclose(self) -> None:
        """Exports the remaining spans, for a bounded time."""


class NoTracing:
    """The tracing of a gateway that does not trace."""

    is_on = False

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> Span:
        return NO_SPAN

    async def aclose(self) -> None:
        return None
