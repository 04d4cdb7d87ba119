"""From settings to what watches: numbers, and the overview of them."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from app.errors import GatewayError
from app.observability.metric_families import ERRORS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.overview import MetricsOverview, ProcessInfo
from app.observability.tracing import NoTracing, Tracing
from app.settings import Settings
from app.settings.sections import EVERY_MODEL
from app.store.database_url import parse_database_url

VERSION: Final = importlib.metadata.version("concertina")


def build_metrics(settings: Settings, folder: Path | None) -> Metrics:
    """What a process counts in.

    Args:
        folder: where the processes that serve together count; None: there is only one.
    """
    if not settings.telemetry.metrics:
        return NO_METRICS
    served = settings.served_models
    named = {deployment.model or name for name, model in served.items() for deployment in model.expand_deployments()}
    metrics = Metrics(folder, models=tuple(sorted(named - {EVERY_MODEL})))
    metrics.set_build_info(version=VERSION, database=_database_backend(settings))
    for code, status in _list_error_codes():
        metrics.counter_series(ERRORS, code, str(status))  # told as 0 until one comes, so that the first is a change
    return metrics


def build_overview(settings: Settings, metrics: Metrics) -> MetricsOverview:
    """What tells of a process group at a glance."""
    nature = ProcessInfo(VERSION, _database_backend(settings), settings.uses_simulated_model)
    return MetricsOverview(metrics, nature, unix_seconds=time.time)


def _list_error_codes() -> Iterator[tuple[str, int]]:
    """Code and status of each kind of error that has both."""
    kinds: list[type[GatewayError]] = [GatewayError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.code is not None:
            yield kind.code, kind.status


def _database_backend(settings: Settings) -> str:
    return parse_database_url(settings.database.url.get_secret_value()).backend


def build_tracing(settings: Settings) -> Tracing:
    """What begins the spans of one application."""
    traces = settings.telemetry.traces
    if not traces.endpoint:
        return NoTracing()
    otel = import_module(
        "app.observability.opentelemetry_tracing"
    )  # an extra; the settings are refused where it is not installed
    headers = {name: value.get_secret_value() for name, value in traces.headers.items()}
    tracing: Tracing = otel.OtelTracing(
        otel.build_exporter(traces.endpoint, headers),
        service_name=traces.service_name,
        version=importlib.metadata.version("concertina"),
        sample_ratio=traces.sample_ratio,
        drain_seconds=traces.drain_seconds,
    )
    return tracing
