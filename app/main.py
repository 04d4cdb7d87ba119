"""Where it all begins: the server, and the application that each of its processes runs."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from starlette.routing import Router
from starlette.types import ASGIApp

from app.api.chat import ChatEndpoint
from app.api.connections import ConnectionLimits, Connections
from app.api.front import Front
from app.api.later import Later
from app.api.probes import Probes
from app.api.watched import Watched
from app.assembly.engine import Engine, engine_of, random_bytes
from app.assembly.models import warm_up
from app.assembly.telemetry import VERSION
from app.observability.log import configure as configure_logging
from app.observability.log import flush as flush_log
from app.server import IDLE_CONNECTION_SECONDS, run_server
from app.settings import Settings
from migrations import run as migrations

log = logging.getLogger(__name__)

COLLECTOR_THRESHOLDS: Final = (20_000, 50, 100)
REST_AFTER_SECONDS: Final = 1.0
"""After the start, unless a request comes for it before: the first answers do not share the processor with it."""
SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer while no provider is configured."""


def serve(settings: Settings) -> int:
    """Migrate the database if it needs it, then serve until told to stop.

    Returns:
        The exit status.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    configure_logging(settings.server.log_level, settings.server.log_format)
    migrations.prepare(settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate)
    with _counted_in(settings) as folder:
        connections = Connections(limits_of(settings))
        create = functools.partial(_worker, settings, folder, connections)
        return run_server(create, settings.server, connections, greeting=_greeting(settings))


def limits_of(settings: Settings) -> ConnectionLimits:
    """What clients may take in time and connections."""
    section = settings.limits
    return ConnectionLimits(
        most=section.max_connections,
        head_bytes=section.max_head_bytes,
        slow_seconds=section.slow_client_seconds,
        min_bytes_per_second=section.min_bytes_per_second,
        idle_seconds=IDLE_CONNECTION_SECONDS,
    )


@contextmanager
def _counted_in(settings: Settings) -> Iterator[Path | None]:
    """A folder in which several processes count, as long as they serve; None where each counts for itself."""
    if settings.server.workers == 1 or not settings.telemetry.metrics:
        yield None
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="concertina-metrics-", ignore_cleanup_errors=True)
    except OSError as error:
        log.warning("each worker counts for itself alone: there is no folder to count in together (%s)", error)
        yield None
        return
    with folder as path:
        yield Path(path)


def _worker(settings: Settings, metrics_folder: Path | None, connections: Connections) -> Watched:
    """The application, in a process that may have been started for it. `connections` are those of its server."""
    configure_logging(settings.server.log_level, settings.server.log_format)
    return create_app(settings, metrics_folder, connections)


def create_app(
    settings: Settings, metrics_folder: Path | None = None, connections: Connections | None = None
) -> Watched:
    """The whole application of one worker process.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
        connections: what comes in by, to be counted; None: somebody else's server.
    """
    engine = engine_of(settings, metrics_folder)
    if connections is not None:
        connections.count_in(engine.metrics)
    chat = ChatEndpoint(
        engine.attempts,
        engine.auth,
        body_limit_bytes=settings.server.body_limit_bytes,
        new_request_id=_new_request_id,
        extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
        metrics=engine.metrics,
    )
    rest = Later(functools.partial(_rest_of, engine, settings, chat))
    probes = Probes(engine.store, version=VERSION, has_upstream=lambda: engine.router.has_upstream)
    lifespan = Router(lifespan=functools.partial(_lifespan, engine, settings, rest)).lifespan
    return Watched(
        Front(chat, rest, probes=probes.routes(_new_request_id), lifespan=lifespan),
        engine.metrics,
        engine.tracing,
        seconds=time.monotonic,
        tells=settings.telemetry.request_log,
    )


def _rest_of(engine: Engine, settings: Settings, chat: ChatEndpoint) -> ASGIApp:
    """What is beside chat completions and probes. It takes most of a start's time and much memory, so it is loaded by
    name once the process serves."""
    made: ASGIApp = import_module("app.assembly.application").application_of(engine, settings, chat, _new_request_id)
    gc.freeze()
    return made


@asynccontextmanager
async def _lifespan(engine: Engine, settings: Settings, rest: Later, _: object) -> AsyncIterator[None]:
    """Open what needs the event loop; at the end finish what runs and close it."""
    await engine.open()
    await asyncio.to_thread(warm_up, settings)
    _spare_the_collector()
    loading = asyncio.get_running_loop().call_later(REST_AFTER_SECONDS, lambda: engine.tasks.spawn(rest.ready()))
    try:
        yield
    finally:
        loading.cancel()
        try:
            await engine.aclose()
        finally:
            flush_log()


def _spare_the_collector() -> None:
    """Let the garbage collector run less often, and never over what was there at the start.

    With the defaults it takes an eighth of the time of a request; what requests leave behind has no cycles to speak of.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _greeting(settings: Settings) -> str:
    """What the start line says beside the address."""
    if settings.uses_simulated_model:
        return "SIMULATED MODEL: no provider is configured, answers are made up"
    return f"providers: {', '.join(settings.providers)}"


def _new_request_id() -> str:
    return f"req_{random_bytes(16).hex()}"
