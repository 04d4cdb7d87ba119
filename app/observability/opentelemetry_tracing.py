"""Exports spans by OpenTelemetry's SDK. Spans wait in a queue, and a thread exports them over OTLP/HTTP.

Only this file imports the SDK, which is an optional extra; it is loaded if traces are configured. It leaves the
library's global objects alone: an application that embeds the gateway keeps its own tracer provider.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.util.types import Attributes as OtelAttributes

from app.observability.log import MAX_FIELD_CHARS
from app.observability.tracing import Tracing

log = logging.getLogger(__name__)

TRACES_PATH: Final = "/v1/traces"
EXPORT_SECONDS: Final = 10.0
"""The timeout of one export, including its retries."""
DRAIN_SECONDS = 5.0
"""How long `aclose` waits for the exporter."""


def build_span_exporter(endpoint: str, headers: Mapping[str, str]) -> SpanExporter:
    """Builds an exporter to an OTLP/HTTP collector.

    Args:
        endpoint: the address of the collector. `/v1/traces` is added unless it ends so.
        headers: headers of each export, such as the collector's key.
    """
    address = endpoint.rstrip("/")
    url = address if address.endswith(TRACES_PATH) else address + TRACES_PATH
    return QuietSpanExporter(OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=EXPORT_SECONDS))


class ExportedTracing(Tracing):
    """Records spans and exports them.

    Args:
        exporter: exports the spans; called in a thread of its own, never by a request.
        service_name: the name of the gateway in traces.
        version: the version of the gateway.
        sample_ratio: the share of requests that are traced, of those whose client has not decided.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        service_name: str,
        version: str,
        sample_ratio: float = 1.0,
    ) -> None:
        self._provider = TracerProvider(
            sampler=_Sampler(sample_ratio),
            resource=Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version}),
            span_limits=SpanLimits(max_attribute_length=MAX_FIELD_CHARS),
            # `aclose` shuts the provider down. The library's exit handler would wait for a collector that hangs.
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        super().__init__(self._provider.get_tracer("concertina", version))

    async def aclose(self) -> None:
        """Exports the remaining spans. Spans that the collector does not take within `DRAIN_SECONDS` are lost."""
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
            await asyncio.wait_for(finished.wait(), DRAIN_SECONDS)
        except TimeoutError:
            log.warning("the trace collector did not accept the last spans within %g s; they are lost", DRAIN_SECONDS)


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
