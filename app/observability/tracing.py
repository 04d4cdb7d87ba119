"""Traces requests by OpenTelemetry's API, which does nothing without its SDK.

The edge gets a `Tracing` and starts a span for each request. The rooms below find it as `current_span()`, and start
child spans. A span has names, numbers and booleans, never content, a key or a tenant.

The current span is kept in a context variable of our own, not in the library's: an application that embeds the gateway
keeps its own spans, and its tracer provider and propagators have no effect here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, NoOpTracer, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Span = trace.Span
SpanKind = trace.SpanKind
AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]
RawHeaders = Iterable[tuple[bytes, bytes]]

Result = TypeVar("Result")

CANCELLED_ERROR_TYPE: Final = "cancelled"
"""The `error.type` of cancelled work."""
ERROR_TYPE: Final = "error.type"
CONVERSATION_ATTRIBUTE: Final = "gen_ai.conversation.id"
STREAMED_ATTRIBUTE: Final = "gen_ai.request.stream"
COMPACTED_ATTRIBUTE: Final = "gen_ai.conversation.compacted"
"""The attribute that says whether the view has summaries in place of a part of the conversation."""
CONTEXT_HEADERS: Final = (b"traceparent", b"tracestate")
_EMPTY_CONTEXT: Final = Context()
"""An empty context. Without an explicit one the library takes the ambient one, which is the embedding application's."""
_W3C: Final = TraceContextTextMapPropagator()


class StartedSpan(NamedTuple):
    """A span that has started, with what its children need.

    Attributes:
        tracer: starts the children.
        shared: attributes for model calls; one dict for all spans of a trace.
        is_recorded: whether the span and its children are recorded. It stays True after the span's end, unlike
            `Span.is_recording`: work in the background may go on, and start child spans.
    """

    span: Span
    tracer: Tracer
    shared: dict[str, AttributeValue]
    is_recorded: bool

    def start_child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None) -> Span:
        """Starts a child span. A span that is not recorded is its own child: it only passes the trace on."""
        if not self.is_recorded:
            return self.span
        # Shared attributes go to model calls only: OpenTelemetry's conventions define `gen_ai.*` for these.
        if kind is SpanKind.CLIENT:
            attributes = {**self.shared, **(attributes or {})}
        parent = set_span_in_context(self.span, _EMPTY_CONTEXT)
        # `record_exception=False`, here and below: an exception's message may contain content.
        return self.tracer.start_span(name, parent, kind, attributes, record_exception=False)


NOT_TRACED: Final = StartedSpan(INVALID_SPAN, NoOpTracer(), shared={}, is_recorded=False)
"""In the place of a request's span, if the request is not traced."""
_current: ContextVar[StartedSpan] = ContextVar("current_span", default=NOT_TRACED)


def current_span() -> Span:
    """Returns the current span of this task; one that records nothing if the request is not traced."""
    return _current.get().span


def is_traced() -> bool:
    """Returns whether the current span is recorded, also after its end."""
    return _current.get().is_recorded


def start_child_span(name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None) -> Span:
    """Starts a child of the current span. The caller ends it."""
    return _current.get().start_child(name, kind, attributes)


def share_attributes(attributes: Attributes) -> None:
    """Sets attributes of the current span, and of every model call that starts in its trace from now on."""
    current = _current.get()
    if current.is_recorded:
        current.shared.update(attributes)
        current.span.set_attributes(attributes)


@contextmanager
def use_span(span: Span) -> Iterator[None]:
    """Makes a span of the current trace the current one. The caller ends it."""
    token = _current.set(_current.get()._replace(span=span))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def run_in_span(started: StartedSpan) -> Iterator[Span]:
    """Makes a span the current one, and ends it. An exception that passes is its error."""
    token = _current.set(started)
    try:
        yield started.span
    except BaseException as error:
        fail_span(started.span, error_type_name(error))
        raise
    finally:
        _current.reset(token)
        started.span.end()


@contextmanager
def run_in_linked_trace(name: str) -> Iterator[None]:
    """Makes a new trace the current one. It is linked to the current span, which causes the work and does not wait."""
    current = _current.get()
    if not current.is_recorded:
        yield
        return
    links = [Link(current.span.get_span_context())]
    span = current.tracer.start_span(name, _EMPTY_CONTEXT, links=links, record_exception=False)
    # Of the shared attributes only the conversation is true of the work in the background.
    shared = {name: value for name, value in current.shared.items() if name == CONVERSATION_ATTRIBUTE}
    with run_in_span(StartedSpan(span, current.tracer, shared, is_recorded=True)):
        yield


def fail_span(span: Span, error_type: str) -> None:
    """Marks a span as failed. Only the first `error_type` is kept."""
    if span.is_recording() and ERROR_TYPE not in getattr(span, "attributes", ()):  # the API cannot read attributes
        span.set_attribute(ERROR_TYPE, error_type)
        span.set_status(StatusCode.ERROR)


def error_type_name(error: BaseException) -> str:
    """Returns the name of an error's class. Its message stays out of spans, because it may contain content."""
    return CANCELLED_ERROR_TYPE if isinstance(error, asyncio.CancelledError) else type(error).__name__


def current_span_ids() -> dict[str, str]:
    """Returns `trace_id` and `span_id` of the current span for log lines; empty if it is not recorded."""
    current = _current.get()
    if not current.is_recorded:
        return {}
    context = current.span.get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def current_trace_headers() -> dict[str, str]:
    """Returns the W3C trace context headers for a call within the current span; empty without tracing."""
    carrier: dict[str, str] = {}
    span = _current.get().span
    if span is not INVALID_SPAN:
        _W3C.inject(carrier, set_span_in_context(span, _EMPTY_CONTEXT))
    return carrier


def trace_work(name: str, work: Coroutine[Any, Any, Result]) -> Coroutine[Any, Any, Result]:
    """Returns the work with a child span of the current span around it, if that is recorded."""
    # A plain function: without a recorded span, the work costs no further frame.
    return _run_in_child(name, work) if _current.get().is_recorded else work


async def _run_in_child(name: str, work: Coroutine[Any, Any, Result]) -> Result:
    current = _current.get()
    with run_in_span(current._replace(span=current.start_child(name))):
        return await work


class Tracing:
    """Starts traces. Each application has one, and closes it at its end.

    Args:
        tracer: starts the spans; None: no request is traced.

    Attributes:
        is_on: whether any request is traced.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self.is_on = tracer is not None

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> StartedSpan:
        """Starts the span of a request, as a child of the client's span if the headers name one. A request that is not
        sampled gets a span that only passes the trace on: the provider must not decide for itself.

        Args:
            name: the name of the span.
            headers: the request's headers, as ASGI has them.
            attributes: the first attributes.
        """
        if self._tracer is None:
            return NOT_TRACED
        parent = _extract_parent_context(headers)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, record_exception=False)
        return StartedSpan(span, self._tracer, {}, span.get_span_context().trace_flags.sampled)

    async def aclose(self) -> None:
        """Exports the remaining spans, for a bounded time."""


def _extract_parent_context(headers: RawHeaders) -> Context:
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in CONTEXT_HEADERS:
            # Repeated headers are joined, because `tracestate` may be split. A repeated `traceparent` thereby becomes
            # invalid and is ignored.
            key, text = name.decode(), value.decode("latin-1")
            carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
    return _W3C.extract(carrier, _EMPTY_CONTEXT) if carrier else _EMPTY_CONTEXT
