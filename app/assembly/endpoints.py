"""Builds the routes of all endpoints except model calls, each with the services that it needs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict

from fastapi import APIRouter

from app.api.admin.api_keys import build_api_key_routes
from app.api.admin.costs import build_cost_routes
from app.api.admin.learned_limits import build_learned_limit_routes
from app.api.admin.metrics_and_overview import build_metrics_routes, build_overview_routes
from app.api.admin.probes import HealthProbes, build_health_routes
from app.api.admin.recent_requests import build_recent_request_routes
from app.api.admin.settings import build_settings_routes
from app.api.console import build_console_routes, read_console_files
from app.api.conversations.compaction import build_compaction_routes
from app.api.conversations.conversations import build_conversation_routes
from app.api.conversations.export_and_import import build_transfer_routes
from app.api.conversations.history import build_history_routes
from app.api.conversations.items_and_pins import build_item_routes, build_pin_routes, build_standing_request_routes
from app.api.conversations.search import build_search_routes
from app.api.conversations.stored_completions import build_stored_completion_routes
from app.api.conversations.summaries import build_summary_routes
from app.api.conversations.views import build_view_routes
from app.api.edge.auth import check_model_allowed
from app.api.edge.unknown_paths import build_unknown_path_routes
from app.api.models import build_model_routes
from app.api.passthrough import build_passthrough_routes
from app.api.responses_resource import build_response_tool_routes, build_stored_response_routes
from app.api.token_count import build_token_count_routes
from app.assembly.engine import GatewayEngine, random_bytes
from app.assembly.telemetry import VERSION
from app.compaction.compactor import make_summary_id
from app.context.count.token_counter import load_token_counter
from app.context.count.vocabulary import find_encoding_name
from app.conversations.api_keys import ApiKeys
from app.conversations.erase.item_removal import ItemRemover
from app.conversations.history.conversation_history import ConversationHistory
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_reader import ItemReader
from app.conversations.items.item_writer import ItemWriter
from app.conversations.items.pins import PinStore
from app.conversations.items.standing_requests import StandingRequestRecords
from app.conversations.search import ConversationSearch
from app.conversations.stored_completions import StoredCompletions
from app.conversations.stored_responses import StoredResponses
from app.conversations.summaries.requested_compaction import RequestedCompactions
from app.conversations.summaries.summaries import SummaryRecords
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.message_export import ConversationExporter
from app.conversations.views.stored_turn import StoredTurnBuilder
from app.conversations.views.view_pages import ViewPages
from app.pipeline.view.standing_requests import StandingRequestReader
from app.settings import Settings
from app.settings.providers_and_models import EVERY_MODEL
from app.settings.settings_in_force import list_settings_in_force
from app.store.database_url import parse_database_url
from app.upstream.routing.model_catalogue import ModelCatalogue


def build_endpoint_routes(engine: GatewayEngine, settings: Settings) -> Iterator[APIRouter]:
    """Yields the routes of all endpoints, in the order in which FastAPI tries them."""
    auth, body_limit_bytes = engine.authenticator, settings.server.body_limit_bytes
    yield build_health_routes(HealthProbes(engine.store.check, version=VERSION, list_dead_loops=engine.list_dead_loops))
    yield from _build_telemetry_routes(engine, settings)
    yield from build_console_endpoints(engine, settings, version=VERSION)
    yield build_model_routes(_build_model_catalogue(engine, settings), auth)
    yield build_token_count_routes(engine.pipeline, auth, body_limit_bytes=body_limit_bytes)
    yield build_stored_completion_routes(StoredCompletions(engine.store), auth)
    yield build_response_tool_routes(
        engine.pipeline, auth, engine.responses_parser.parse, body_limit_bytes=body_limit_bytes
    )
    yield build_stored_response_routes(StoredResponses(engine.store), auth)
    api_keys = ApiKeys(
        engine.store,
        usage=engine.usage,
        policies=settings.policies,
        now=engine.dependencies.now,
        random_bytes=secrets.token_bytes,
    )
    yield build_api_key_routes(api_keys, auth)
    yield build_cost_routes(engine.usage, api_keys, auth, now=engine.dependencies.now)
    yield build_settings_routes(lambda: [asdict(setting) for setting in list_settings_in_force(settings)], auth)
    yield build_learned_limit_routes(engine.window_learner, auth)
    records = ConversationRecords(engine.store)
    yield from _build_conversation_routes(engine, settings, records)
    yield from _build_context_routes(engine, settings, records)
    providers = tuple(engine.providers.values())
    is_simulated = settings.uses_simulated_model
    yield build_unknown_path_routes(passes_on=not is_simulated)
    # Last: it matches every path below /v1, and `api.edge.unknown_paths` takes the last route for the pass-through.
    yield build_passthrough_routes(
        engine.router,
        providers,
        auth,
        engine.admission,
        engine.call_limits,
        engine.usage,
        allowed_paths=_list_allowed_paths(settings),
        body_limit_bytes=body_limit_bytes,
        is_simulated=is_simulated,
    )


def _list_allowed_paths(settings: Settings) -> dict[str, tuple[str, ...]] | None:
    """Lists the paths that each provider is passed in mode `keys`. In mode `open` the accounts are the clients' own."""
    if settings.auth.mode == "open" or settings.uses_simulated_model:
        return None
    return {name: provider.pass_through for name, provider in settings.providers.items()}


def _build_telemetry_routes(engine: GatewayEngine, settings: Settings) -> Iterator[APIRouter]:
    section, metrics = settings.telemetry, engine.metrics
    token = section.metrics_token.get_secret_value() if section.metrics_token else None
    # All routes exist in any case. If they get None, they answer 404 and name the setting to change.
    yield build_metrics_routes(metrics.render if metrics.is_on else None, token=token)
    yield build_overview_routes(
        engine.overview.build_overview if metrics.is_on and section.overview else None, engine.authenticator
    )
    yield build_recent_request_routes(engine.recent_requests, engine.authenticator)


def _build_model_catalogue(engine: GatewayEngine, settings: Settings) -> ModelCatalogue:
    return ModelCatalogue(
        router=engine.router,
        windows=engine.context_windows,
        providers=tuple(engine.providers.values()),
        names=[name for name in settings.served_models if name != EVERY_MODEL],
        # OpenAI's model object requires a time; for a name from the configuration, the start has to serve.
        created=int(time.time()),
    )


def _build_conversation_routes(
    engine: GatewayEngine, settings: Settings, records: ConversationRecords
) -> Iterator[APIRouter]:
    """Yields the routes for stored conversations: export and import, search, conversations, history, items."""
    auth, store = engine.authenticator, engine.store
    importer = ConversationImporter(
        store=store,
        message_counter=engine.message_counter,
        tasks=engine.background_tasks,
        random_bytes=random_bytes,
        # Imported and added messages have no model yet, so they are counted in the encoding of unknown models.
        encoding=find_encoding_name(""),
    )
    yield build_transfer_routes(
        ConversationExporter(store), importer, records, auth, body_limit_bytes=settings.server.body_limit_bytes
    )
    conversation_search = ConversationSearch(
        store=store, message_search=engine.message_search, tasks=engine.background_tasks, clock=engine.dependencies.now
    )
    history = ConversationHistory(store=store, records=records, policies=engine.model_contexts.policies)
    yield build_search_routes(conversation_search, records, history, auth)
    item_writer = ItemWriter(
        store=store,
        records=records,
        leases=engine.leases,
        message_counter=engine.message_counter,
        random_bytes=random_bytes,
        encoding=find_encoding_name(""),
        wait_seconds=settings.compaction.wait_seconds,
    )
    yield build_conversation_routes(records, item_writer, history, auth)
    yield build_history_routes(history, auth)
    item_eraser = ItemRemover(
        store=store,
        records=records,
        leases=engine.leases,
        message_counter=engine.message_counter,
        clock=engine.dependencies.now,
        new_chunk_id=make_summary_id,
        wait_seconds=settings.compaction.wait_seconds,
    )
    yield build_item_routes(records, item_writer, ItemReader(store, records), item_eraser, auth)


def _build_context_routes(
    engine: GatewayEngine, settings: Settings, records: ConversationRecords
) -> Iterator[APIRouter]:
    """Yields the routes for what a model sees of a conversation: views, summaries, compaction, pins, standing
    requests."""
    auth, store, view_builder = engine.authenticator, engine.store, engine.view_builder
    stored_turns = StoredTurnBuilder(
        store=store, message_counter=engine.message_counter, model_contexts=engine.model_contexts
    )
    view_pages = ViewPages(store=store, records=records, stored_turns=stored_turns, view_builder=view_builder)
    yield build_view_routes(view_pages, auth, policies=sorted(engine.model_contexts.policies))
    summaries = SummaryRecords(
        store=store,
        records=records,
        stored_turns=stored_turns,
        view_builder=view_builder,
        turn_compactor=engine.turn_compactor,
        counter_for=load_token_counter,
        check_model=check_model_allowed,
        clock=engine.dependencies.now,
        tasks=engine.background_tasks,
    )
    yield build_summary_routes(summaries, auth, engine.admission, engine.call_limits)
    compactions = RequestedCompactions(
        store=store,
        leases=engine.leases,
        records=records,
        stored_turns=stored_turns,
        view_builder=view_builder,
        pinning=engine.pin_updater,
        turn_compactor=engine.turn_compactor,
        check_model=check_model_allowed,
        clock=time.monotonic,
        tasks=engine.background_tasks,
        wait_seconds=settings.compaction.wait_seconds,
        heartbeat_seconds=engine.dependencies.heartbeat_seconds,
    )
    yield build_compaction_routes(compactions, auth, engine.admission, engine.call_limits)
    pins = PinStore(
        store=store,
        records=records,
        item_reader=ItemReader(store, records),
        stored_turns=stored_turns,
        view_builder=view_builder,
        pinning=engine.pin_updater,
    )
    yield build_pin_routes(pins, auth)
    reader = StandingRequestReader(store=store, message_counter=engine.message_counter)
    yield build_standing_request_routes(StandingRequestRecords(store=store, records=records, reader=reader), auth)


def build_console_endpoints(engine: GatewayEngine, settings: Settings, *, version: str) -> Iterator[APIRouter]:
    """Yields the console's routes; nothing while `server.console` is off, so that its paths are unknown."""
    if not settings.server.console:
        return
    auth = settings.auth
    facts = {
        "version": version,
        "auth_mode": auth.mode,
        "end_users": auth.end_users,
        "end_user_header": auth.end_user_header if auth.end_users else None,
        "simulated": settings.uses_simulated_model,
        "policies": sorted(engine.model_contexts.policies),
        "default_policy": settings.default_policy,
        "database": parse_database_url(settings.database.url.get_secret_value()).backend,
        "encrypted": settings.encryption.active is not None,
    }
    yield build_console_routes(read_console_files(), facts, engine.authenticator)
