"""Builds the application of a process from its gateway: all routes, with the services that they need."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from app.api import console, docs_page, messages_resource, models, passthrough, responses_resource, token_count
from app.api.admin import api_keys, costs, learned_limits, metrics_and_overview, probes, recent_requests
from app.api.admin import settings as settings_in_force
from app.api.conversations import (
    compaction,
    conversations,
    export_and_import,
    history,
    items_and_pins,
    search,
    stored_completions,
    summaries,
    views,
)
from app.api.edge.auth import check_model_allowed
from app.api.edge.connections import ClientConnections
from app.api.edge.error_handlers import install_error_handlers
from app.api.edge.header_checks import HeaderCheckMiddleware, HostRules
from app.api.edge.headers import RequestIdMiddleware
from app.api.edge.request_reader import BodyLimitMiddleware
from app.api.edge.request_telemetry import RequestTelemetry
from app.api.edge.unknown_paths import build_unknown_path_routes
from app.api.model_calls import build_model_call_routes
from app.api.openapi import DocumentedApplication
from app.assembly.dependencies import DEFAULT_DEPENDENCIES, Dependencies
from app.assembly.gateway import Gateway, new_request_id, random_bytes
from app.assembly.telemetry import VERSION
from app.compaction.summary_maker import make_summary_id
from app.context.count.token_counter import load_token_counter
from app.context.count.vocabulary import find_encoding_name
from app.conversations.api_keys import ApiKeys
from app.conversations.erase.item_removal import ItemRemover
from app.conversations.history.conversation_history import ConversationHistory
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.id_lookup import IdLookup
from app.conversations.items.item_reader import ItemReader
from app.conversations.items.item_writer import ItemWriter
from app.conversations.items.pins import PinStore
from app.conversations.items.user_text import UserTextRecords
from app.conversations.search import ConversationSearch
from app.conversations.stored_completions import StoredCompletions
from app.conversations.stored_responses import StoredResponses
from app.conversations.summaries.requested_compaction import RequestedCompactions
from app.conversations.summaries.summaries import SummaryRecords
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.message_export import ConversationExporter
from app.conversations.views.stored_turn import StoredTurnBuilder
from app.conversations.views.view_pages import ViewPages
from app.dialects.chat.stored_completion import build_completion_object
from app.dialects.responses.stored_answer import render_kept_response
from app.settings import Settings
from app.settings.providers_and_models import EVERY_MODEL
from app.settings.settings_in_force import list_settings_in_force
from app.store.database_url import parse_database_url
from app.upstream.routing.model_catalogue import ModelCatalogue


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
    gateway = Gateway(settings, metrics_folder, dependencies)
    application = DocumentedApplication(
        title="Concertina",
        version=VERSION,
        lifespan=gateway.run_lifespan,
        # The operation ids of /openapi.json: the function's name alone, where FastAPI adds path and method.
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # FastAPI's pages load scripts from a CDN; `api.docs_page` serves its own
        redoc_url=None,
        # FastAPI's spans have messages of exceptions, and go to whatever an embedding application has set up.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    # First, since routes are tried in order and these are the requests that must be fast.
    application.router.routes.extend(
        build_model_call_routes(
            gateway.chat_endpoint, gateway.responses_endpoint, gateway.messages_endpoint, gateway.compaction_endpoint
        )
    )
    for routes in _build_routes(gateway, connections):
        application.include_router(routes)
    install_error_handlers(application, passes_on=not settings.uses_simulated_model)
    # The middleware that is added last is the outermost: a refusal gets a request id, too.
    application.add_middleware(
        BodyLimitMiddleware, limit_bytes=settings.server.body_limit_bytes, budget=gateway.body_budget
    )
    hosts = HostRules(settings.auth.allowed_hosts, asks_for_key=settings.auth.mode == "keys")
    application.add_middleware(HeaderCheckMiddleware, hosts=hosts, single=gateway.authenticator.credential_headers)
    application.add_middleware(RequestIdMiddleware, new_request_id=new_request_id)
    if connections is not None:
        connections.register_metrics(gateway.metrics)
    return RequestTelemetry(
        application,
        gateway.metrics,
        gateway.tracing,
        seconds=time.monotonic,
        logs_requests=settings.telemetry.request_log,
        keep_request=None if gateway.requests is None else gateway.requests.add,
    )


def _build_routes(gateway: Gateway, connections: ClientConnections | None) -> Iterator[APIRouter]:
    """Yields the routes of all endpoints except model calls, in the order in which FastAPI tries them."""
    settings, store, auth = gateway.settings, gateway.store, gateway.authenticator
    yield docs_page.build_docs_routes()
    yield probes.build_health_routes(
        store.check,
        version=VERSION,
        is_stopping=lambda: connections is not None and connections.stopping.is_set(),
        list_dead_loops=gateway.list_dead_loops,
    )
    yield from _build_admin_routes(gateway)
    if settings.server.console:
        yield console.build_console_routes(console.read_console_files(), _list_gateway_facts(gateway), auth)
    providers = tuple(gateway.providers.values())
    catalogue = ModelCatalogue(
        router=gateway.router,
        windows=gateway.context_windows,
        providers=providers,
        names=[name for name in settings.served_models if name != EVERY_MODEL],
        # OpenAI's model object requires a time; for a name from the configuration, the start has to serve.
        created=int(time.time()),
    )
    yield models.build_model_routes(catalogue, auth)
    yield messages_resource.build_messages_routes(gateway.pipeline, auth)
    yield token_count.build_token_count_routes(gateway.pipeline, auth)
    yield stored_completions.build_stored_completion_routes(StoredCompletions(store, build_completion_object), auth)
    yield responses_resource.build_response_tool_routes(gateway.pipeline, auth, gateway.responses_parser.parse)
    yield responses_resource.build_stored_response_routes(StoredResponses(store, render_kept_response), auth)
    records = ConversationRecords(store)
    finder = ConversationSearch(
        store=store, message_search=gateway.message_search, tasks=gateway.tasks, clock=gateway.now
    )
    lookup = IdLookup(store=store, requests=gateway.requests, list_active_tenants=finder.list_active_tenants)
    turns = ConversationHistory(store=store, records=records)
    yield search.build_search_routes(finder, lookup, records, turns, auth)
    yield from _build_conversation_routes(gateway, records, turns)
    yield from _build_context_routes(gateway, records, lookup)
    is_simulated = settings.uses_simulated_model
    yield build_unknown_path_routes(passes_on=not is_simulated)
    # In mode `open` the accounts are the clients' own, so every path is passed through.
    allowed_paths = None
    if settings.auth.mode == "keys" and not is_simulated:
        allowed_paths = {name: provider.pass_through for name, provider in settings.providers.items()}
    # Last: it matches every path below /v1, and `api.edge.unknown_paths` takes the last route for the pass-through.
    yield passthrough.build_passthrough_routes(
        gateway.router,
        providers,
        auth,
        gateway.admission,
        gateway.call_limits,
        gateway.usage,
        allowed_paths=allowed_paths,
        is_simulated=is_simulated,
    )


def _build_admin_routes(gateway: Gateway) -> Iterator[APIRouter]:
    """Yields the routes for operators. Those of what is switched off exist, too: they answer 404 and name the setting
    to change."""
    settings, auth, metrics = gateway.settings, gateway.authenticator, gateway.metrics
    section = settings.telemetry
    token = section.metrics_token.get_secret_value() if section.metrics_token else None
    yield metrics_and_overview.build_metrics_routes(metrics.render if metrics.is_on else None, token=token)
    overview = gateway.overview.build_overview if metrics.is_on else None
    yield metrics_and_overview.build_overview_routes(overview, auth)
    yield recent_requests.build_recent_request_routes(gateway.requests, gateway.store, auth)
    keys = ApiKeys(
        gateway.store,
        usage=gateway.usage,
        policies=settings.policies,
        now=gateway.now,
        random_bytes=secrets.token_bytes,
    )
    yield api_keys.build_api_key_routes(keys, auth)
    yield costs.build_cost_routes(gateway.usage, keys, auth, now=gateway.now)
    yield settings_in_force.build_settings_routes(
        lambda: [asdict(setting) for setting in list_settings_in_force(settings)], auth
    )
    yield learned_limits.build_learned_limit_routes(gateway.window_learner, auth)


def _list_gateway_facts(gateway: Gateway) -> dict[str, Any]:
    """Returns what a page of the console is told about the gateway."""
    settings, auth = gateway.settings, gateway.settings.auth
    return {
        "version": VERSION,
        "auth_mode": auth.mode,
        "end_users": auth.end_users,
        "end_user_header": auth.end_user_header if auth.end_users else None,
        "simulated": settings.uses_simulated_model,
        "policies": sorted(settings.policies),
        "default_policy": settings.default_policy,
        "database": parse_database_url(settings.database.url.get_secret_value()).backend,
        "encrypted": settings.encryption.active is not None,
    }


def _build_conversation_routes(
    gateway: Gateway, records: ConversationRecords, records_of_turns: ConversationHistory
) -> Iterator[APIRouter]:
    """Yields the routes for stored conversations: export and import, conversations, history, items."""
    auth, store, counter, tasks = gateway.authenticator, gateway.store, gateway.message_counter, gateway.tasks
    wait_seconds = gateway.settings.compaction.wait_seconds
    # Imported and added messages have no model yet, so they are counted in the encoding of unknown models.
    encoding = find_encoding_name("")
    importer = ConversationImporter(
        store=store, message_counter=counter, tasks=tasks, random_bytes=random_bytes, encoding=encoding
    )
    yield export_and_import.build_transfer_routes(ConversationExporter(store), importer, records, auth)
    item_writer = ItemWriter(
        store=store,
        records=records,
        leases=gateway.leases,
        message_counter=counter,
        random_bytes=random_bytes,
        encoding=encoding,
        wait_seconds=wait_seconds,
    )
    yield conversations.build_conversation_routes(records, item_writer, records_of_turns, auth, gateway.store)
    yield history.build_history_routes(records_of_turns, auth)
    item_remover = ItemRemover(
        store=store,
        records=records,
        leases=gateway.leases,
        message_counter=counter,
        clock=gateway.now,
        new_chunk_id=make_summary_id,
        wait_seconds=wait_seconds,
    )
    yield items_and_pins.build_item_routes(records, item_writer, ItemReader(store, records), item_remover, auth)


def _build_context_routes(gateway: Gateway, records: ConversationRecords, lookup: IdLookup) -> Iterator[APIRouter]:
    """Yields the routes for what a model sees of a conversation: views, summaries, compaction, pins, user
    text."""
    auth, store, counter, tasks = gateway.authenticator, gateway.store, gateway.message_counter, gateway.tasks
    view_builder, pin_updater = gateway.view_builder, gateway.pin_updater
    stored_turns = StoredTurnBuilder(store=store, message_counter=counter, model_contexts=gateway.model_contexts)
    view_pages = ViewPages(
        store=store,
        records=records,
        stored_turns=stored_turns,
        view_builder=view_builder,
        find_item_id=lookup.find_item_id,
    )
    yield views.build_view_routes(view_pages, auth, policies=sorted(gateway.settings.policies))
    summary_records = SummaryRecords(
        store=store,
        records=records,
        stored_turns=stored_turns,
        view_builder=view_builder,
        turn_compactor=gateway.turn_compactor,
        counter_for=load_token_counter,
        check_model=check_model_allowed,
        clock=gateway.now,
        tasks=tasks,
    )
    yield summaries.build_summary_routes(summary_records, auth, gateway.admission, gateway.call_limits)
    compactions = RequestedCompactions(
        store=store,
        leases=gateway.leases,
        records=records,
        stored_turns=stored_turns,
        view_builder=view_builder,
        pinning=pin_updater,
        turn_compactor=gateway.turn_compactor,
        capsule_builder=gateway.capsule_builder,
        check_model=check_model_allowed,
        clock=time.monotonic,
        tasks=tasks,
        wait_seconds=gateway.settings.compaction.wait_seconds,
        heartbeat_seconds=gateway.dependencies.heartbeat_seconds,
    )
    yield compaction.build_compaction_routes(compactions, auth, gateway.admission, gateway.call_limits)
    pins = PinStore(
        store=store,
        records=records,
        item_reader=ItemReader(store, records),
        stored_turns=stored_turns,
        view_builder=view_builder,
        pinning=pin_updater,
    )
    yield items_and_pins.build_pin_routes(pins, auth)
    yield items_and_pins.build_user_text_routes(UserTextRecords(store=store, records=records), auth)
