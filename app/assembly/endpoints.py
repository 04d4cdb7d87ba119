"""The endpoints beside chat completions, each with what it needs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from fastapi import APIRouter

from app.api.admin.api_keys import admin_routes
from app.api.admin.health import health_routes
from app.api.admin.metrics import metrics_routes, overview_routes
from app.api.console import console_files, console_routes
from app.api.conversations.compact import compact_routes
from app.api.conversations.conversations import conversation_routes
from app.api.conversations.history import history_routes
from app.api.conversations.items import item_routes, pin_routes
from app.api.conversations.search import search_routes
from app.api.conversations.stored_completions import completion_routes
from app.api.conversations.summaries import summary_routes
from app.api.conversations.transfer import transfer_routes
from app.api.conversations.views import view_routes
from app.api.edge.auth import check_model
from app.api.edge.unknown_paths import unknown_path_routes
from app.api.models import model_routes
from app.api.passthrough import passthrough_routes
from app.api.token_count import context_routes
from app.assembly.engine import Engine, random_bytes, utc_now
from app.assembly.telemetry import VERSION
from app.compaction.compactor import new_chunk_id
from app.context.count.token_counter import counter_for
from app.context.count.vocabulary import encoding_for
from app.conversations.api_keys import Issuing
from app.conversations.erase.erasure import Erasing
from app.conversations.history.conversations import Records
from app.conversations.history.history import History
from app.conversations.items.item_list import Listing
from app.conversations.items.item_writer import Adding
from app.conversations.items.pins import Pins
from app.conversations.search import Searching
from app.conversations.stored_completions import Completions
from app.conversations.summaries.requested_compaction import Compactions
from app.conversations.summaries.summaries import Summaries
from app.conversations.transfer.export import Exporting
from app.conversations.transfer.import_ import Importing
from app.conversations.views.stored_turn import Standing
from app.conversations.views.view_pages import Looking
from app.observability.prometheus import Exposition
from app.settings import Settings
from app.settings.sections import EVERY_MODEL
from app.store.location import location_of
from app.upstream.routing.model_list import Catalogue


def routes_beside_chat(engine: Engine, settings: Settings) -> Iterator[APIRouter]:
    """All of them, in the order in which paths are looked up: the pass-through takes what the others leave."""
    auth, body_limit_bytes = engine.auth, settings.server.body_limit_bytes
    yield health_routes(engine.store, version=VERSION, has_upstream=lambda: engine.router.has_upstream)
    yield from _routes_of_telemetry(engine, settings)
    yield from routes_of_console(engine, settings, version=VERSION)
    yield model_routes(_catalogue(engine, settings), auth)
    yield context_routes(engine.exchange, auth, body_limit_bytes=body_limit_bytes)
    yield completion_routes(Completions(engine.store), auth)
    issuing = Issuing(engine.store, policies=settings.policies, now=utc_now, random_bytes=secrets.token_bytes)
    yield admin_routes(issuing, auth)
    records = Records(engine.store)
    yield from _routes_of_conversations(engine, settings, records)
    yield from _routes_of_views(engine, settings, records)
    providers = tuple(engine.providers.values())
    is_simulated = settings.uses_simulated_model
    yield unknown_path_routes(passes_on=not is_simulated)
    yield passthrough_routes(
        engine.router,
        providers,
        auth,
        engine.admission,
        body_limit_bytes=body_limit_bytes,
        is_simulated=is_simulated,
    )


def _routes_of_telemetry(engine: Engine, settings: Settings) -> Iterator[APIRouter]:
    section, metrics = settings.telemetry, engine.metrics
    token = section.metrics_token.get_secret_value() if section.metrics_token else None
    yield metrics_routes(Exposition(metrics.numbers) if metrics.is_on else None, token=token)
    yield overview_routes(engine.overview.told if metrics.is_on and section.overview else None, engine.auth)


def _catalogue(engine: Engine, settings: Settings) -> Catalogue:
    return Catalogue(
        router=engine.router,
        windows=engine.windows,
        providers=tuple(engine.providers.values()),
        names=[name for name in settings.served_models if name != EVERY_MODEL],
        created=int(time.time()),
    )


def _routes_of_conversations(engine: Engine, settings: Settings, records: Records) -> Iterator[APIRouter]:
    """What is kept: conversations and their items, moved in and out, searched."""
    auth, store = engine.auth, engine.store
    importing = Importing(
        store=store,
        counting=engine.counting,
        tasks=engine.tasks,
        random_bytes=random_bytes,
        encoding=encoding_for(""),
    )
    yield transfer_routes(Exporting(store), importing, records, auth, body_limit_bytes=settings.server.body_limit_bytes)
    searching = Searching(store=store, finding=engine.finding, tasks=engine.tasks, clock=utc_now)
    history = History(store=store, records=records, policies=engine.turns.policies)
    yield search_routes(searching, records, history, auth)
    adding = Adding(
        store=store,
        records=records,
        leases=engine.leases,
        counting=engine.counting,
        random_bytes=random_bytes,
        encoding=encoding_for(""),
        wait_seconds=settings.compaction.wait_seconds,
    )
    yield conversation_routes(records, adding, history, auth)
    yield history_routes(history, auth)
    erasing = Erasing(
        store=store,
        records=records,
        leases=engine.leases,
        counting=engine.counting,
        clock=utc_now,
        new_chunk_id=new_chunk_id,
        wait_seconds=settings.compaction.wait_seconds,
    )
    yield item_routes(records, adding, Listing(store, records), erasing, auth)


def _routes_of_views(engine: Engine, settings: Settings, records: Records) -> Iterator[APIRouter]:
    """What a model is shown of a conversation, and what people do about it."""
    auth, store, views = engine.auth, engine.store, engine.views
    standing = Standing(store=store, counting=engine.counting, turns=engine.turns)
    looking = Looking(store=store, records=records, standing=standing, views=views)
    yield view_routes(looking, auth, policies=sorted(engine.turns.policies))
    summaries = Summaries(
        store=store,
        records=records,
        standing=standing,
        views=views,
        compacting=engine.compacting,
        counter_for=counter_for,
        allow=check_model,
        clock=utc_now,
        tasks=engine.tasks,
    )
    yield summary_routes(summaries, auth, engine.admission)
    compactions = Compactions(
        store=store,
        leases=engine.leases,
        records=records,
        standing=standing,
        views=views,
        pinning=engine.pinning,
        compacting=engine.compacting,
        allow=check_model,
        seconds=time.monotonic,
        tasks=engine.tasks,
        wait_seconds=settings.compaction.wait_seconds,
    )
    yield compact_routes(compactions, auth, engine.admission)
    pins = Pins(
        store=store,
        records=records,
        listing=Listing(store, records),
        standing=standing,
        views=views,
        pinning=engine.pinning,
    )
    yield pin_routes(pins, auth)


def routes_of_console(engine: Engine, settings: Settings, *, version: str) -> Iterator[APIRouter]:
    """None while `server.console` is off: its paths are unknown then."""
    if not settings.server.console:
        return
    auth = settings.auth
    facts = {
        "version": version,
        "auth_mode": auth.mode,
        "end_users": auth.end_users,
        "end_user_header": auth.end_user_header if auth.end_users else None,
        "simulated": settings.uses_simulated_model,
        "policies": sorted(engine.turns.policies),
        "default_policy": settings.policy_of_every_model,
        "database": location_of(settings.database.url.get_secret_value()).backend,
        "encrypted": settings.encryption.active is not None,
    }
    yield console_routes(console_files(), facts, engine.auth)
