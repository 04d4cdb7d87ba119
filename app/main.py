"""Where it all begins: the server, and the application that each of its processes runs."""

from __future__ import annotations

import functools
import gc
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.observability.log import configure_logging
from app.server import IDLE_CONNECTION_SECONDS, create_stop_flag, run_server
from app.settings import Settings
from migrations import run as migrations

log = logging.getLogger(__name__)


def serve(settings: Settings, overrides: Sequence[str] = ()) -> int:
    """Migrate the database if it needs it, then serve until told to stop.

    Args:
        overrides: a sentence for each value of the settings file that an environment variable overrides, for the log.

    Returns:
        The exit status.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    configure_logging(settings.server.log_level, settings.server.log_format)
    for override in overrides:
        log.warning("%s", override)
    migrations.prepare_database(settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate)
    with _metrics_folder(settings) as folder:
        connections = ClientConnections(build_connection_limits(settings), leaving=create_stop_flag(settings.server))
        create = functools.partial(_create_worker_app, settings, folder, connections)
        return run_server(create, settings.server, connections, greeting=_build_greeting(settings))


def build_connection_limits(settings: Settings) -> ConnectionLimits:
    """What clients may take in time and connections."""
    section = settings.limits
    return ConnectionLimits(
        max_connections=section.max_connections,
        max_head_bytes=section.max_head_bytes,
        slow_client_seconds=section.slow_client_seconds,
        min_bytes_per_second=section.min_bytes_per_second,
        idle_seconds=IDLE_CONNECTION_SECONDS,
    )


@contextmanager
def _metrics_folder(settings: Settings) -> Iterator[Path | None]:
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


def _create_worker_app(settings: Settings, metrics_folder: Path | None, connections: ClientConnections) -> Any:
    """The application, in a process that may have been started for it. `connections` are those of its server."""
    configure_logging(settings.server.log_level, settings.server.log_format)
    return create_app(settings, metrics_folder, connections)


def create_app(
    settings: Settings, metrics_folder: Path | None = None, connections: ClientConnections | None = None
) -> Any:
    """The whole ASGI application of one worker process.

    Its modules are loaded by name: the process that only watches over several workers does without them. Meanwhile the
    garbage collector rests: what modules are made of stays, and looking at it all takes a tenth of their time.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
        connections: what comes in by, to be counted; None: somebody else's server.
    """
    gc.disable()
    try:
        worker = import_module("app.assembly.worker")
    finally:
        gc.enable()
    return worker.build_worker_application(settings, metrics_folder, connections)


def _build_greeting(settings: Settings) -> str:
    """What the start line says beside the address."""
    if settings.uses_simulated_model:
        return "SIMULATED MODEL: no provider is configured, answers are made up"
    return f"providers: {', '.join(settings.providers)}"
