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

from app.api.admin.probes import Probes
from app.api.chat_completions import ChatEndpoint, Sizes
from app.api.edge.asgi_front import Front, Later
from app.api.edge.connections import Connections
from app.api.edge.header_checks import HostRules, RequestHeads
from app.api.edge.request_telemetry import Watched
from app.assembly.engine import Engine, engine_of, random_bytes
from app.assembly.models import warm_up
from app.assembly.telemetry import VERSION
from app.observability.log import flush as flush_log
from app.settings import Settings

REST_AFTER_SECONDS: Final = 1.0
"""After the start, unless a request comes for it before: the first answers do not share the processor with it."""
SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer while no provider is configured."""


def application_of_worker(settings: Settings, metrics_folder: Path | None, connections: Connections | None) -> Watched:
    """The whole application of one worker process.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
        connections: what comes in by, to be counted; None: somebody else's server.
    """
    engine = engine_of(settings, metrics_folder)
    if connections is not None:
        connections.count_in(engine.metrics)
    chat = ChatEndpoint(
        engine.retries,
        engine.auth,
        body_limit_bytes=settings.server.body_limit_bytes,
        new_request_id=_new_request_id,
        extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
        metrics=engine.metrics,
        sizes=Sizes(settings.limits.max_messages, settings.limits.max_tools),
    )
    rest = Later(functools.partial(_rest_of, engine, settings, chat))
    probes = Probes(
        engine.store,
        version=VERSION,
        has_upstream=lambda: engine.router.has_upstream,
        is_leaving=lambda: connections is not None and connections.leaving.is_set(),
    )
    hosts = HostRules(settings.auth.allowed_hosts, asks_for_key=settings.auth.mode == "keys")
    front = Front(
        chat,
        rest,
        heads=RequestHeads(hosts, engine.auth.read_headers),
        probes=probes.routes(_new_request_id),
        lifespan=functools.partial(_lifespan, engine, settings, rest),
        new_request_id=_new_request_id,
    )
    return Watched(
        front,
        engine.metrics,
        engine.tracing,
        seconds=time.monotonic,
        tells=settings.telemetry.request_log,
    )


def _rest_of(engine: Engine, settings: Settings, chat: ChatEndpoint) -> Any:
    """What is beside chat completions and probes. It takes most of a start's time and much memory, so it is loaded by
    name once the process serves."""
    made = import_module("app.assembly.application").application_of(engine, settings, chat, _new_request_id)
    gc.freeze()
    return made


@asynccontextmanager
async def _lifespan(engine: Engine, settings: Settings, rest: Later, _: object) -> AsyncIterator[None]:
    """Open what needs the event loop; at the end finish what runs and close it."""
    await engine.open()
    await asyncio.to_thread(warm_up, settings)
    if settings.server.preload:
        await rest.ready()
    gc.collect()
    gc.freeze()  # what was there at the start stays: the collector need not look at it
    loading = asyncio.get_running_loop().call_later(REST_AFTER_SECONDS, lambda: engine.tasks.spawn(rest.ready()))
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
