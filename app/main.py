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
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route

from app.api.chat import ChatEndpoint
from app.api.errors import install_error_handlers
from app.api.front import CHAT_PATH, Front
from app.api.limits import BodyLimit
from app.api.openapi import describe
from app.api.request_ids import RequestIds
from app.api.watched import Watched
from app.assembly.engine import Engine, engine_of, random_bytes
from app.assembly.models import warm_up
from app.assembly.resources import routes_beside_chat
from app.assembly.telemetry import VERSION
from app.observability.log import configure as configure_logging
from app.observability.log import flush as flush_log
from app.server import run_server
from app.settings import Settings
from migrations import run as migrations

log = logging.getLogger(__name__)

COLLECTOR_THRESHOLDS: Final = (20_000, 50, 100)
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
        create = functools.partial(_worker, settings, folder)
        return run_server(create, settings.server, greeting=_greeting(settings))


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


def _worker(settings: Settings, metrics_folder: Path | None) -> Watched:
    """The application, in a process that may have been started for it."""
    configure_logging(settings.server.log_level, settings.server.log_format)
    return create_app(settings, metrics_folder)


def create_app(settings: Settings, metrics_folder: Path | None = None) -> Watched:
    """The whole application of one worker process.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
    """
    engine = engine_of(settings, metrics_folder)
    chat = ChatEndpoint(
        engine.attempts,
        engine.auth,
        body_limit_bytes=settings.server.body_limit_bytes,
        new_request_id=_new_request_id,
        extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
        metrics=engine.metrics,
    )
    application = FastAPI(
        title="Concertina",
        version=VERSION,
        description="An OpenAI-compatible gateway whose conversations never outgrow the model's context window.",
        lifespan=functools.partial(_lifespan, engine, settings),
        generate_unique_id_function=lambda route: route.name,
    )
    application.router.routes.append(Route(CHAT_PATH, chat, methods=["POST"], include_in_schema=False))
    for routes in routes_beside_chat(engine, settings):
        application.include_router(routes)
    install_error_handlers(application)
    application.openapi = describe(application)  # type: ignore[method-assign]  # how FastAPI wants it
    application.add_middleware(BodyLimit, limit_bytes=settings.server.body_limit_bytes)
    application.add_middleware(RequestIds, new_request_id=_new_request_id)
    return Watched(
        Front(chat, application),
        engine.metrics,
        engine.tracing,
        seconds=time.monotonic,
        tells=settings.telemetry.request_log,
    )


@asynccontextmanager
async def _lifespan(engine: Engine, settings: Settings, application: FastAPI) -> AsyncIterator[None]:
    """Open what needs the event loop; at the end finish what runs and close it."""
    await engine.open()
    await asyncio.to_thread(warm_up, settings)
    _spare_the_collector()
    try:
        yield
    finally:
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
