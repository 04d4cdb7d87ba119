"""What each process that serves runs: chats and probes at once, the rest when it is needed or a moment after."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from app.api.admin.probes import HealthProbes
from app.api.chat_completions import ChatCompletionsEndpoint, RequestSizeLimits
from app.api.edge.asgi_front import AsgiFront, LazyApplication
from app.api.edge.connections import ClientConnections
from app.api.edge.header_checks import HeaderChecks, HostRules
from app.api.edge.request_telemetry import RequestTelemetry
from app.assembly.engine import GatewayEngine, build_engine, random_bytes
from app.assembly.models import warm_up_tokenizers
from app.assembly.telemetry import VERSION
from app.observability.log import flush_log
from app.settings import Settings

LAZY_LOAD_DELAY_SECONDS: Final = 1.0
"""After the start, unless a request comes for it before: the first answers do not share the processor with it."""
SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer while no provider is configured."""


def build_worker_application(
    settings: Settings, metrics_folder: Path | None, connections: ClientConnections | None
) -> RequestTelemetry:
    """The whole application of one worker process.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
        connections: what comes in by, to be counted; None: somebody else's server.
    """
    engine = build_engine(settings, metrics_folder)
    if connections is not None:
        connections.report_to(engine.metrics)
    chat = ChatCompletionsEndpoint(
        engine.request_coalescing,
        engine.authenticator,
        body_limit_bytes=settings.server.body_limit_bytes,
        new_request_id=_new_request_id,
        extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
        metrics=engine.metrics,
        size_limits=RequestSizeLimits(settings.limits.max_messages, settings.limits.max_tools),
    )
    rest = LazyApplication(functools.partial(_build_lazy_application, engine, settings, chat))
    probes = HealthProbes(
        engine.store,
        version=VERSION,
        has_upstream=lambda: engine.router.has_available_deployment,
        is_leaving=lambda: connections is not None and connections.stopping.is_set(),
    )
    hosts = HostRules(settings.auth.allowed_hosts, asks_for_key=settings.auth.mode == "keys")
    front = AsgiFront(
        chat,
        rest,
        heads=HeaderChecks(hosts, engine.authenticator.credential_headers),
        probes=probes.build_routes(_new_request_id),
        lifespan=functools.partial(_run_lifespan, engine, settings, rest),
        new_request_id=_new_request_id,
    )
    return RequestTelemetry(
        front,
        engine.metrics,
        engine.tracing,
        seconds=time.monotonic,
        tells=settings.telemetry.request_log,
    )


def _build_lazy_application(engine: GatewayEngine, settings: Settings, chat: ChatCompletionsEndpoint) -> Any:
    """What is beside chat completions and probes. It takes most of a start's time and much memory, so it is loaded by
    name once the process serves."""
    made = import_module("app.assembly.application").build_application(engine, settings, chat, _new_request_id)
    gc.freeze()
    return made


@asynccontextmanager
async def _run_lifespan(
    engine: GatewayEngine, settings: Settings, rest: LazyApplication, _: object
) -> AsyncIterator[None]:
    """Open what needs the event loop; at the end finish what runs and close it."""
    await engine.open()
    await asyncio.to_thread(warm_up_tokenizers, settings)
    if settings.server.preload:
        await rest.load()
    gc.collect()
    gc.freeze()  # what was there at the start stays: the collector need not look at it
    loading = asyncio.get_running_loop().call_later(
        LAZY_LOAD_DELAY_SECONDS, lambda: engine.background_tasks.spawn(rest.load())
    )
    try:
        yield
    finally:
        loading.cancel()
        try:
            await engine.aclose()
        finally:
            flush_log()


def _new_request_id() -> str:
    return f"req_{random_bytes(16).hex()}"
