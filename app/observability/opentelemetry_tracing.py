"""Implements `tracing` by OpenTelemetry. Spans wait in a queue, and a thread exports them over OTLP/HTTP.

Only this file imports the library, which is an optional extra; it is loaded if traces are configured. It leaves the
library's global objects alone: an application that embeds the gateway keeps its own tracer provider, propagators and
context.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes as OtelAttributes

from app.observability.log import MAX_FIELD_CHARS
from app.observability.tracing import (
    CONVERSATION_ATTRIBUTE,
    NO_SPAN,
    Attributes,
    RawHeaders,
    Span,
    SpanKind,
    error_type_name,
    make_span_current,
    restore_span,
)

log = logging.getLogger(__name__)

TRACES_PATH: Final = "/v1/traces"
EXPORT_SECONDS: Final = 10.0
"""The timeout of one export, including its retries."""
CONTEXT_HEADERS: Final = (b"traceparent", b"tracestate")
_KINDS: Final = {"internal": trace.SpanKind.INTERNAL, "client": trace.SpanKind.CLIENT}
_EMPTY_CONTEXT: Final = Context()
"""An empty context. Without an explicit one the library takes the ambient one, which is the embedding application's."""
_W3C: Final = TraceContextTextMapPropagator()


def build_span_exporter(endpoint: str, headers: Mapping[str, str]) -> SpanExporter:
    """Builds an exporter to an OTLP/HTTP collector.

    Args:
        endpoint: the address of the collector. `/v1/traces` is added unless it ends so.
        headers: headers of each export, such as the collector's key.
    """
    address = endpoint.rstrip("/")
    url = address if address.endswith(TRACES_PATH) else address + TRACES_PATH
    return QuietSpanExporter(OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=EXPORT_SECONDS))


class OtelTracing:
    """Implements `tracing.Tracing` by OpenTelemetry.

    Args:
        exporter: exports the spans; called in a thread of its own, never by a request.
        service_name: the name of the gateway in traces.
        version: the version of the gateway.
        sample_ratio: the share of requests that are traced, of those whose client has not decided.
        drain_seconds: how long `aclose` waits for the exporter.
    """

    is_on = True

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        service_name: str,
        version: str,
        sample_ratio: float = 1.0,
        drain_seconds: float = 5.0,
    ) -> None:
        self._provider = TracerProvider(
            sampler=_Sampler(sample_ratio),
            resource=Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version}),
            span_limits=SpanLimits(max_attribute_length=MAX_FIELD_CHARS),
            # `aclose` shuts the provider down. The library's exit handler would wait for a collector that hangs.
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("concertina", version)
        self._drain_seconds = drain_seconds

    def start_request_span(self, name: str, headers: RawHeaders, attributes: Attributes) -> Span:
        """Starts the span of a request. A request that is not sampled gets a span that only passes the trace on."""
        parent = _extract_parent_context(headers)
        # `record_exception=False`, here and below: an exception's message may contain content.
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes, record_exception=False)
        if span.is_recording():
            return _OtelSpan(self._tracer, span, {})
        # The provider must learn that this trace is not sampled. Otherwise it would decide for itself.
        return _UnsampledSpan(span.get_span_context()) if span.get_span_context().is_valid else NO_SPAN

    async def aclose(self) -> None:
        """Exports the remaining spans. Spans that the collector does not take within `drain_seconds` are lost."""
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            # The thread may end after the timeout, when the loop is gone.
            if not loop.is_closed():
                loop.call_soon_threadsafe(finished.set)

        # A daemon thread, unlike those of the event loop's pool: the process does not wait for a collector that hangs.
        threading.Thread(target=shut_down, name="traces-shutdown", daemon=True).start()
        try:
            await asyncio.wait_for(finished.wait(), self._drain_seconds)
        except TimeoutError:
            log.warning(
                "the trace collector did not accept the last spans within %g s; they are lost", self._drain_seconds
            )


class _UnsampledSpan(Span):
    """The span of a request that is not sampled. It records nothing; calls carry its context, so that providers do not
    sample either."""

    __slots__ = ("_context",)

    def __init__(self, context: trace.SpanContext) -> None:
        self._context = context

    def trace_headers(self) -> Mapping[str, str]:
        return _build_trace_headers(trace.NonRecordingSpan(self._context))

    def __enter__(self) -> Span:
        # Never reset: it is its own child, and the server runs each request in a context of its own.
        make_span_current(self)
        return self


class _OtelSpan(Span):
    """A recorded span.

    Args:
        tracer: starts child spans.
        span: the library's span.
        shared: attributes for model calls; one dict for all spans of a trace.
    """

    __slots__ = ("_has_failed", "_shared", "_span", "_token", "_tracer", "ids")

    is_recording = True

    def __init__(self, tracer: trace.Tracer, span: trace.Span, shared: dict[str, object]) -> None:
        self._tracer = tracer
        self._span = span
        self._shared = shared
        self._token: Token[Span] | None = None
        self._has_failed = False
        context = span.get_span_context()
        self.ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def start_child(self, name: str, kind: SpanKind = "internal", attributes: Attributes | None = None) -> Span:
        # Shared attributes go to model calls only: OpenTelemetry's conventions define `gen_ai.*` for these.
        parent = trace.set_span_in_context(self._span, _EMPTY_CONTEXT)
        span_attributes: OtelAttributes = {**self._shared, **(attributes or {})} if kind == "client" else attributes  # type: ignore[dict-item]
        span = self._tracer.start_span(name, parent, _KINDS[kind], span_attributes, record_exception=False)
        return _OtelSpan(self._tracer, span, self._shared)

    def start_linked_trace(self, name: str) -> Span:
        links = [trace.Link(self._span.get_span_context())]
        span = self._tracer.start_span(name, _EMPTY_CONTEXT, links=links, record_exception=False)
        # Of the shared attributes only the conversation is true of the work in the background.
        shared = {name: value for name, value in self._shared.items() if name == CONVERSATION_ATTRIBUTE}
        return _OtelSpan(self._tracer, span, shared)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def set_shared(self, attributes: Attributes) -> None:
        self._shared.update(attributes)
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        self._span.add_event(name, attributes)

    def fail(self, error_type: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(trace.StatusCode.ERROR)

    def trace_headers(self) -> Mapping[str, str]:
        return _build_trace_headers(self._span)

    def end(self) -> None:
        # The library logs a warning if a span ends twice.
        if self._span.is_recording():
            self._span.end()

    def __enter__(self) -> Span:
        self._token = make_span_current(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._token is not None:
            restore_span(self._token)
            self._token = None
        if error is not None:
            self.fail(error_type_name(error))
        self.end()


class _Sampler(Sampler):
    """Samples a request as its client has decided; if it has not, by the ratio of trace ids. A linked trace is always
    sampled, because only recorded spans start one."""

    def __init__(self, ratio: float) -> None:
        self._request_sampler = ParentBased(TraceIdRatioBased(ratio))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        attributes: OtelAttributes = None,
        links: Sequence[trace.Link] | None = None,
        trace_state: trace.TraceState | None = None,
    ) -> SamplingResult:
        sampler = ALWAYS_ON if links else self._request_sampler
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return "requests as their clients decide, otherwise by ratio; linked traces always"


class QuietSpanExporter(SpanExporter):
    """An exporter that logs once when its collector becomes unavailable, and once when it is back.

    The log lines of the library and of `urllib3`, several for each batch, are switched off in the whole process.

    Args:
        exporter: exports the spans.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_away = False
        for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        if is_away and not self._is_away:
            log.warning("the trace collector accepts no spans; they are dropped until it does")
        elif self._is_away and not is_away:
            log.info("the trace collector accepts spans again")
        self._is_away = is_away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _extract_parent_context(headers: RawHeaders) -> Context:
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in CONTEXT_HEADERS:
            # Repeated headers are joined, because `tracestate` may be split. A repeated `traceparent` thereby becomes
            # invalid and is ignored.
            key, text = name.decode(), value.decode("latin-1")
            carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
    return _W3C.extract(carrier, _EMPTY_CONTEXT) if carrier else _EMPTY_CONTEXT


def _build_trace_headers(span: trace.Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, _EMPTY_CONTEXT))
    return carrier
