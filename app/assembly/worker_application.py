"""Builds the application that each worker process runs."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from app.api.admin.probes import HealthProbes
from app.api.answer_endpoint import AnswerEndpoint, ParseRequest, RequestListLimits
from app.api.chat_request_parser import parse_chat_request
from app.api.edge.asgi_front import CHAT_PATH, RESPONSES_PATH, AsgiFront
from app.api.edge.connections import ClientConnections
from app.api.edge.header_checks import HeaderChecks, HostRules
from app.api.edge.request_telemetry import RequestTelemetry
from app.assembly.dependencies import DEFAULT_DEPENDENCIES, Dependencies
from app.assembly.engine import GatewayEngine, random_bytes
from app.assembly.fastapi_application import build_fastapi_application
from app.assembly.providers_and_routes import warm_up_tokenizers
from app.assembly.telemetry import VERSION
from app.settings import Settings

SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer while no provider is configured."""


def build_worker_application(
    settings: Settings,
    metrics_folder: Path | None,
    connections: ClientConnections | None,
    dependencies: Dependencies = DEFAULT_DEPENDENCIES,
) -> RequestTelemetry:
    """Builds the whole application of one worker process.

    Args:
        metrics_folder: the folder in which several processes count together; None: this process serves alone.
        connections: the client connections of the server, for metrics and the readiness probe; None: another server
            than `app.server` runs the application.
    """
    engine = GatewayEngine(settings, metrics_folder, dependencies)
    if connections is not None:
        connections.register_metrics(engine.metrics)
    model_calls = {
        CHAT_PATH: _build_answer_endpoint(engine, settings, parse_chat_request),
        RESPONSES_PATH: _build_answer_endpoint(engine, settings, engine.responses_parser.parse),
    }
    application = build_fastapi_application(engine, settings, model_calls, _new_request_id)
    probes = HealthProbes(
        engine.store.check,
        version=VERSION,
        is_stopping=lambda: connections is not None and connections.stopping.is_set(),
        list_dead_loops=engine.list_dead_loops,
    )
    hosts = HostRules(settings.auth.allowed_hosts, asks_for_key=settings.auth.mode == "keys")
    front = AsgiFront(
        model_calls,
        application,
        header_checks=HeaderChecks(hosts, engine.authenticator.credential_headers),
        probes=probes.build_routes(_new_request_id),
        lifespan=functools.partial(_run_lifespan, engine, settings),
        new_request_id=_new_request_id,
    )
    return RequestTelemetry(
        front,
        engine.metrics,
        engine.tracing,
        seconds=time.monotonic,
        logs_requests=settings.telemetry.request_log,
        recent_requests=engine.recent_requests,
    )


def _build_answer_endpoint(engine: GatewayEngine, settings: Settings, parse_request: ParseRequest) -> AnswerEndpoint:
    return AnswerEndpoint(
        engine.request_coalescing,
        engine.authenticator,
        parse_request,
        body_limit_bytes=settings.server.body_limit_bytes,
        body_budget=engine.body_budget,
        new_request_id=_new_request_id,
        extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
        metrics=engine.metrics,
        list_limits=RequestListLimits(settings.limits.max_messages, settings.limits.max_tools),
    )


@asynccontextmanager
async def _run_lifespan(engine: GatewayEngine, settings: Settings, _: object) -> AsyncIterator[None]:
    """Opens the engine before the server serves; at the end finishes running work and closes the engine."""
    await engine.open()
    # In a thread: a tokenizer's table takes a third of a second to load, and the event loop renews leases.
    await asyncio.to_thread(warm_up_tokenizers, settings)
    # The objects of the start stay until the process ends: the garbage collector need not examine them. Garbage is
    # collected before, or it would be kept as well.
    engine.dependencies.collect_garbage()
    engine.dependencies.freeze_garbage()
    try:
        yield
    finally:
        await engine.aclose()


def _new_request_id() -> str:
    return f"req_{random_bytes(16).hex()}"
