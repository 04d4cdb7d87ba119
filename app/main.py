"""Starts the server, and creates the application that each of its worker processes runs."""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.observability.log import configure_logging
from app.observability.worker_metric_files import FOLDER_VARIABLE, count_alone, drop_gauges_of_dead_workers
from app.server import IDLE_CONNECTION_SECONDS, create_stop_flag, follow_parent_process, run_server
from app.settings import Settings
from app.settings.checks import list_empty_key_warnings
from migrations import run as migrations

log = logging.getLogger(__name__)

OPERATOR_TOKEN_PREFIX: Final = "cop_"  # noqa: S105 - only the beginning of one
OPERATOR_TOKEN_BYTES: Final = 32


def serve(settings: Settings, overrides: Sequence[str] = ()) -> int:
    """Migrates the database if necessary, then serves until a signal stops the server.

    Args:
        overrides: a sentence for each value of the settings file that an environment variable overrides; they are
            logged.

    Returns:
        The exit status.

    Raises:
        StoreUnavailable: the database cannot be reached.
        SchemaIsNewer, SchemaIsOlder: the database cannot be used with this version (`migrations.run`).
    """
    configure_logging(settings.server.log_level, settings.server.log_format)
    for sentence in (*overrides, *list_empty_key_warnings(settings)):
        log.warning("%s", sentence)
    # Before the workers start: one migration, and one error message if it fails.
    migrations.prepare_database(settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate)
    token = _make_operator_token(settings)
    if token is not None:
        settings = settings.with_operator_token(token)
    with _open_metrics_folder(settings) as folder, _show_operator_token(token) as console_path:
        connections = ClientConnections(build_connection_limits(settings), stopping=create_stop_flag(settings.server))
        create = functools.partial(_create_worker_app, settings, folder, connections)
        return run_server(
            create,
            settings.server,
            connections,
            greeting=_build_greeting(settings),
            console_path=console_path if settings.server.console else None,
            on_worker_end=lambda: None if folder is None else drop_gauges_of_dead_workers(folder),
        )


def build_connection_limits(settings: Settings) -> ConnectionLimits:
    """Builds the limits of client connections from the settings."""
    section = settings.limits
    return ConnectionLimits(
        max_connections=section.max_connections,
        slow_client_seconds=section.slow_client_seconds,
        min_bytes_per_second=section.min_bytes_per_second,
        idle_seconds=IDLE_CONNECTION_SECONDS,
    )


@contextmanager
def _open_metrics_folder(settings: Settings) -> Iterator[Path | None]:
    """Yields a folder in which several worker processes count together. The folder exists as long as they serve.

    Yields None if there is one process, if it counts nothing, or if no folder can be made.
    """
    # A folder that the environment names already may not exist, or have numbers of another program.
    os.environ.pop(FOLDER_VARIABLE, None)  # noqa: TID251 - no setting of ours
    count_alone()
    if settings.server.workers == 1 or not settings.telemetry.metrics:
        yield None
        return
    try:
        # A file that cannot be deleted at the end must not turn a clean stop into a failure.
        folder = tempfile.TemporaryDirectory(prefix="concertina-metrics-", ignore_cleanup_errors=True)
    except OSError as error:
        # Answers matter more than metrics: without the folder, each worker shows its own numbers only.
        log.warning("cannot make the folder for shared metrics, so each worker reports only its own: %s", error)
        yield None
        return
    with folder as path:
        # The worker processes inherit it, and `prometheus_client` reads it when it is imported.
        os.environ[FOLDER_VARIABLE] = path  # noqa: TID251 - no setting of ours
        yield Path(path)


@contextmanager
def _show_operator_token(token: str | None) -> Iterator[str]:
    """Yields the end of the console's address in the start line. What goes to no terminal is kept as a log, which more
    people read: then the token is in a file for this user alone, which exists as long as the server."""
    if token is None or sys.stdout.isatty():
        yield f"/console/#token={token}" if token else "/console/"
        return
    with tempfile.NamedTemporaryFile("w", prefix="concertina-operator-token-") as file:
        file.write(token)
        file.flush()
        yield f"/console/ (operator's token: {file.name})"


def _create_worker_app(settings: Settings, metrics_folder: Path | None, connections: ClientConnections) -> Any:
    """Creates the application of a worker process.

    Args:
        connections: the client connections of the process's server.
    """
    # Again: a spawned worker process inherits no logging configuration.
    configure_logging(settings.server.log_level, settings.server.log_format)
    follow_parent_process()
    return create_app(settings, metrics_folder, connections)


def create_app(
    settings: Settings, metrics_folder: Path | None = None, connections: ClientConnections | None = None
) -> Any:
    """Creates the whole ASGI application of one worker process.

    Args:
        metrics_folder: the folder in which several processes count together; None: this process serves alone.
        connections: the client connections of the server, for metrics and the readiness probe; None: another server
            than `app.server` runs the application.
    """
    # By name: a process that only supervises several workers does not need these modules.
    worker = import_module("app.assembly.endpoints")
    return worker.build_worker_application(settings, metrics_folder, connections)


def _build_greeting(settings: Settings) -> str:
    """Returns the part of the start line that follows the address."""
    database = f"database: {settings.database.location}"
    if settings.auth.mode == "open" and settings.telemetry.metrics and not _is_local(settings.server.host):
        database += "; mode open: everybody who reaches the port sees the numbers of /v1/admin/overview"
    if settings.uses_simulated_model:
        return f"SIMULATED MODEL: no provider is configured, answers are made up; {database}"
    return f"providers: {', '.join(settings.providers)}; {database}"


def _make_operator_token(settings: Settings) -> str | None:
    """Makes an operator's token, unless the settings say something about it or strangers may reach the port: what a
    container prints is kept with its logs."""
    is_configured = settings.auth.operator_token is not None
    if is_configured or not settings.server.console or not _is_local(settings.server.host):
        return None
    return OPERATOR_TOKEN_PREFIX + secrets.token_urlsafe(OPERATOR_TOKEN_BYTES)


def _is_local(host: str) -> bool:
    """Returns whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
