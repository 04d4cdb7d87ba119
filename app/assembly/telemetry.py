"""Builds from the settings what observes a process: metrics, their overview, and tracing."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from app.errors import GatewayError
from app.observability.metric_families import BUILD_INFO, ERRORS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.overview import MetricsOverview, ProcessInfo
from app.observability.tracing import Tracing
from app.settings import Settings
from app.settings.providers_and_models import EVERY_MODEL
from app.simulator.request_checks import LISTED_MODELS
from app.store.database_url import parse_database_url
from app.upstream.routing.known_model_windows import is_well_known_model

VERSION: Final = importlib.metadata.version("concertina-gateway")


def build_metrics(settings: Settings, folder: Path | None) -> Metrics:
    """Builds the metrics of a process.

    Args:
        folder: the folder in which several processes count together; None: this process serves alone.
    """
    if not settings.telemetry.metrics:
        return NO_METRICS
    served = settings.served_models
    model_names = {
        deployment.model or name for name, model in served.items() for deployment in model.expand_deployments()
    }
    # The wildcard is the entry for names that clients choose, and no model.
    metrics = Metrics(folder, models=tuple(sorted(model_names - {EVERY_MODEL})), is_known_model=_is_known_model)
    metrics.gauge_series(BUILD_INFO, VERSION, _find_database_backend(settings)).set(1)
    for code, status in _list_error_codes():
        # Every error is reported as 0 from the start: a series that appears with 1 shows no increase in Prometheus.
        metrics.counter_series(ERRORS, code, str(status))
    return metrics


def _is_known_model(name: str) -> bool:
    return name in LISTED_MODELS or is_well_known_model(name)


def build_overview(settings: Settings, metrics: Metrics) -> MetricsOverview:
    """Builds the overview of the processes that serve together."""
    process_info = ProcessInfo(VERSION, _find_database_backend(settings), settings.uses_simulated_model)
    return MetricsOverview(metrics, process_info, unix_seconds=time.time)


def _list_error_codes() -> Iterator[tuple[str, int]]:
    """Yields the code and the status of each class of error that has a code."""
    error_classes: list[type[GatewayError]] = [GatewayError]
    for error_class in error_classes:
        # The list grows while the loop runs: in this way it reaches the whole tree of classes.
        error_classes += error_class.__subclasses__()
        if error_class.code is not None:
            yield error_class.code, error_class.status


def _find_database_backend(settings: Settings) -> str:
    return parse_database_url(settings.database.url.get_secret_value()).backend


def build_tracing(settings: Settings) -> Tracing:
    """Builds the tracing of a process; without an endpoint for traces, it does nothing."""
    traces = settings.telemetry.traces
    if not traces.endpoint:
        return Tracing()
    # By name: OpenTelemetry's SDK is an optional extra. Where it is not installed, the settings refuse an endpoint.
    otel = import_module("app.observability.opentelemetry_tracing")
    headers = {name: value.get_secret_value() for name, value in traces.headers.items()}
    tracing: Tracing = otel.ExportedTracing(
        otel.build_span_exporter(traces.endpoint, headers),
        service_name=traces.service_name,
        version=importlib.metadata.version("concertina-gateway"),
        sample_ratio=traces.sample_ratio,
    )
    return tracing
