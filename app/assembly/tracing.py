"""From settings to traces: OpenTelemetry where a collector is named, else nothing."""

from __future__ import annotations

import importlib.metadata
from importlib import import_module

from app.observability.tracing import NoTracing, Tracing
from app.settings import Settings


def tracing_of(settings: Settings) -> Tracing:
    """What begins the spans of one application."""
    traces = settings.telemetry.traces
    if not traces.endpoint:
        return NoTracing()
    otel = import_module(
        "app.observability.opentelemetry_tracing"
    )  # an extra; the settings are refused where it is not installed
    headers = {name: value.get_secret_value() for name, value in traces.headers.items()}
    tracing: Tracing = otel.OtelTracing(
        otel.exporter_to(traces.endpoint, headers),
        service_name=traces.service_name,
        version=importlib.metadata.version("concertina"),
        sample_ratio=traces.sample_ratio,
        drain_seconds=traces.drain_seconds,
    )
    return tracing
