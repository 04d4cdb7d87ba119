"""Composition root: the only reader of settings, the only builder of clients, engines and tasks."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.metadata
import logging
import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route

from app.api.admin import admin_routes
from app.api.auth import Auth, AuthRules, check_model
from app.api.chat import ChatEndpoint
from app.api.compact import compact_routes
from app.api.completions import completion_routes
from app.api.context import context_routes
from app.api.conversations import conversation_routes
from app.api.errors import install_error_handlers
from app.api.front import CHAT_PATH, Front
from app.api.health import health_routes
from app.api.items import item_routes
from app.api.limits import BodyLimit
from app.api.models import model_routes
from app.api.openapi import describe
from app.api.passthrough import passthrough_routes
from app.api.pins import pin_routes
from app.api.request_ids import RequestIds
from app.api.search import search_routes
from app.api.summaries import summary_routes
from app.api.transfer import transfer_routes
from app.api.views import view_routes
from app.archive.adding import Adding
from app.archive.compacting import Compactions
from app.archive.completions import Completions
from app.archive.erasing import Erasing
from app.archive.exporting import Exporting
from app.archive.importing import Importing
from app.archive.issuing import Issuing
from app.archive.listing import Listing
from app.archive.looking import Looking
from app.archive.pins import Pins
from app.archive.records import Records
from app.archive.retention import Retention
from app.archive.searching import Searching
from app.archive.standing import Standing
from app.archive.summaries import Summaries
from app.compaction.compactor import Compactor
from app.compaction.summarizer import Summarizer
from app.context.calibration import Calibration
from app.context.policy import ClearReasoning, ClearToolResults, Policy, SummarizerPolicy, Trigger
from app.context.tokenizers import tokenizer_for
from app.context.tokens import TokenCounter
from app.context.vocabulary import encoding_for
from app.conversation.identity import PrefixMemory
from app.exchange.ask import Ask
from app.exchange.attempts import Attempts
from app.exchange.compacting import Compacting
from app.exchange.counting import Counting
from app.exchange.delivery import Delivery
from app.exchange.finding import Finding
from app.exchange.history import Remembered
from app.exchange.pinning import Pinning
from app.exchange.preparing import Preparing
from app.exchange.quoting import Quoting
from app.exchange.recall import Recall
from app.exchange.recalling import Recalling
from app.exchange.remember import Remember
from app.exchange.request_keys import RequestKeys
from app.exchange.stored import Storing
from app.exchange.story import Clocks, Exchange
from app.exchange.tasks import Tasks
from app.exchange.turns import Turns
from app.exchange.views import Views
from app.observability.log import configure as configure_logging
from app.server import run_server
from app.settings import Settings
from app.settings.sections import EVERY_MODEL
from app.settings.sections import Deployment as DeploymentSettings
from app.settings.sections import Provider as ProviderSettings
from app.simulator.options import SimulatorOptions
from app.simulator.provider import SimulatedProvider
from app.simulator.simulator import Simulator
from app.simulator.window import window_of
from app.store.base import Store
from app.store.ciphers import Cipher
from app.store.connect import open_store
from app.store.encrypted import EncryptedStore
from app.store.leases import LeaseKeeper
from app.upstream import registry
from app.upstream.base import Provider, Quirks
from app.upstream.catalogue import Catalogue
from app.upstream.openai import OpenAIProvider, Timeouts
from app.upstream.router import ModelRoute, Place, RetryPolicy, Router
from app.upstream.windows import Windows
from migrations import run as migrations

log = logging.getLogger(__name__)

VERSION: Final = importlib.metadata.version("concertina")
SIMULATOR: Final = "simulator"
LAST_WRITES_SECONDS: Final = 5.0
"""After the drain, which the server has waited for already: what is left are writes."""
COLLECTOR_THRESHOLDS: Final = (20_000, 50, 100)
_ids: Final = random.Random(secrets.randbits(256))  # noqa: S311 - see below
"""For ids, which must not collide but may be guessed: a tenant's are of no use to another."""
POLICY_PARTS: Final[Mapping[str, Callable[..., object]]] = {
    "trigger": Trigger,
    "clear_tool_results": ClearToolResults,
    "clear_reasoning": ClearReasoning,
    "summarizer": SummarizerPolicy,
}
SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer while no provider is configured."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the process is made of, in the order in which it is closed."""

    store: Store
    leases: LeaseKeeper
    retention: Retention
    preparing: Preparing
    compactor: Compactor
    tasks: Tasks
    providers: tuple[Provider, ...]
    auth: Auth


def serve(settings: Settings) -> int:
    """Migrate the database if it needs it, then serve until told to stop.

    Returns:
        The exit status.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    configure_logging(settings.server.log_level, settings.server.log_format)
    migrations.prepare(settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate)
    return run_server(functools.partial(_worker, settings), settings.server, greeting=_greeting(settings))


def policy_of(settings: Settings, name: str) -> Policy:
    """A configured policy as the planner takes it."""
    values = dict(settings.policies[name])
    for part, made in POLICY_PARTS.items():
        values[part] = made(**dict(values[part]))
    return Policy(name=name, **values)


def store_of(settings: Settings) -> Store:
    """The configured store, not yet connected; what is said in it is encrypted while a key is active."""
    store = open_store(
        settings.database.url.get_secret_value(),
        synchronous=settings.database.synchronous,
        timeout_seconds=settings.database.timeout_seconds,
        pool_size=settings.database.pool_size,
        statement_cache_size=settings.database.statement_cache_size,
    )
    return EncryptedStore(store, Cipher(settings.encryption.key_bytes, settings.encryption.active))


def _worker(settings: Settings) -> Front:
    """The application, in a process that may have been started for it."""
    configure_logging(settings.server.log_level, settings.server.log_format)
    return create_app(settings)


def create_app(settings: Settings) -> Front:
    """The whole application of one worker process."""
    store = store_of(settings)
    providers = _providers(settings)
    routes = _routes(settings)
    router, summary_router = (_router(settings, routes, providers) for _ in range(2))
    seeds: dict[str, Calibration] = {}
    windows = Windows(
        default_tokens=settings.window_default,
        known=_simulated_window if settings.uses_simulated_model else registry.find,
        clock=time.monotonic,
    )
    leases = LeaseKeeper(store, holder=uuid.uuid4().hex, lease_seconds=settings.compaction.lease_seconds)
    tasks = Tasks()
    counting = Counting(_counter_for)
    compactor = Compactor(
        store=store,
        leases=leases,
        summarizer=Summarizer(router=summary_router, windows=windows, counter_for=_counter_for),
        counter_for=_counter_for,
    )
    views = Views(store=store, counting=counting)
    prefixes: PrefixMemory[Remembered] = PrefixMemory()
    recall = Recall(
        store=store,
        leases=leases,
        counting=counting,
        prefixes=prefixes,
        random_bytes=_ids.randbytes,
        wait_seconds=settings.compaction.wait_seconds,
        serves_degraded=settings.degraded_mode == "serve",
    )
    ask = Ask(router=router, windows=windows, views=views, store=store, tasks=tasks, seeds=seeds)
    remember = Remember(
        store=store, leases=leases, counting=counting, prefixes=prefixes, random_bytes=_ids.randbytes
    )
    compacting = Compacting(
        views=views, compactor=compactor, recall=recall, tasks=tasks, wait_seconds=settings.compaction.wait_seconds
    )
    finding = Finding(store)
    preparing = Preparing(views=views, compacting=compacting, compactor=compactor, finding=finding, tasks=tasks)
    retention = Retention(
        store=store,
        leases=leases,
        days=settings.retention.days,
        end_users=settings.auth.end_users,
        sweep_seconds=settings.retention.sweep_seconds,
        clock=_utc_now,
        random=random.random,
    )
    auth = _auth(settings, store)
    parts = _Parts(store, leases, retention, preparing, compactor, tasks, tuple(providers.values()), auth)
    quoting = Quoting(views=views, finding=finding, counting=counting, tasks=tasks)
    recalling = Recalling(ask=ask, views=views, finding=finding, counting=counting)
    turns = Turns(
        router=router,
        windows=windows,
        policies={name: policy_of(settings, name) for name in settings.policies},
        default_policy=settings.policy_of_every_model,
        model_policies={name: model.policy for name, model in settings.models.items() if model.policy},
        calibration_seeds=seeds,
    )
    pinning = Pinning(store=store, counting=counting)
    exchange = Exchange(
        recall=recall,
        views=views,
        compacting=compacting,
        remember=remember,
        delivery=Delivery(
            remember=remember,
            ask=ask,
            recalling=recalling,
            preparing=preparing,
            storing=Storing(store, now=_utc_now),
            tasks=tasks,
        ),
        recalling=recalling,
        quoting=quoting,
        pinning=pinning,
        turns=turns,
        tasks=tasks,
        clocks=Clocks(unix_seconds=time.time, new_completion_id=_new_completion_id),
    )
    extra_headers = SIMULATED_HEADER if settings.uses_simulated_model else {}
    attempts = Attempts(
        exchange=exchange,
        keys=RequestKeys(
            store=store,
            tasks=tasks,
            new_holder=lambda: _ids.randbytes(16).hex(),
            wait_seconds=settings.compaction.wait_seconds,
            clock=time.monotonic,
            sleep=asyncio.sleep,
            random=random.random,
        ),
        tasks=tasks,
        clock=time.monotonic,
    )
    chat = ChatEndpoint(
        attempts,
        auth,
        body_limit_bytes=settings.server.body_limit_bytes,
        new_request_id=_new_request_id,
        extra_headers=extra_headers,
    )
    application = FastAPI(
        title="Concertina",
        version=VERSION,
        description="An OpenAI-compatible gateway whose conversations never outgrow the model's context window.",
        lifespan=functools.partial(_lifespan, parts, windows, seeds, settings),
    )
    application.router.routes.append(Route(CHAT_PATH, chat, methods=["POST"], include_in_schema=False))
    application.include_router(
        health_routes(
            store, version=VERSION, has_upstream=lambda: router.has_upstream
        )
    )
    names = [name for name in settings.served_models if name != EVERY_MODEL]
    catalogue = Catalogue(
        router=router, windows=windows, providers=parts.providers, names=names, created=int(time.time())
    )
    application.include_router(model_routes(catalogue, auth))
    application.include_router(completion_routes(Completions(store), auth))
    issuing = Issuing(store, policies=settings.policies, now=_utc_now, random_bytes=secrets.token_bytes)
    application.include_router(admin_routes(issuing, auth))
    application.include_router(context_routes(exchange, auth, body_limit_bytes=settings.server.body_limit_bytes))
    records = Records(store)
    importing = Importing(
        store=store, counting=counting, tasks=tasks, random_bytes=_ids.randbytes, encoding=encoding_for("")
    )
    application.include_router(
        transfer_routes(
            Exporting(store), importing, records, auth, body_limit_bytes=settings.server.body_limit_bytes
        )
    )
    searching = Searching(store=store, finding=finding, tasks=tasks, clock=_utc_now)
    application.include_router(search_routes(searching, records, auth))
    adding = Adding(
        store=store,
        records=records,
        leases=leases,
        counting=counting,
        random_bytes=_ids.randbytes,
        encoding=encoding_for(""),
        wait_seconds=settings.compaction.wait_seconds,
    )
    application.include_router(conversation_routes(records, adding, auth))
    erasing = Erasing(
        store=store,
        records=records,
        leases=leases,
        counting=counting,
        clock=_utc_now,
        new_chunk_id=lambda: f"sum_{uuid.uuid4().hex}",
        wait_seconds=settings.compaction.wait_seconds,
    )
    listing = Listing(store, records)
    application.include_router(item_routes(records, adding, listing, erasing, auth))
    standing = Standing(store=store, counting=counting, turns=turns)
    looking = Looking(store=store, records=records, standing=standing, views=views)
    summaries = Summaries(
        store=store,
        records=records,
        standing=standing,
        views=views,
        compacting=compacting,
        counter_for=_counter_for,
        allow=check_model,
        clock=_utc_now,
        tasks=tasks,
    )
    compactions = Compactions(
        store=store,
        leases=leases,
        records=records,
        standing=standing,
        views=views,
        pinning=pinning,
        compacting=compacting,
        allow=check_model,
        seconds=time.monotonic,
        tasks=tasks,
        wait_seconds=settings.compaction.wait_seconds,
    )
    pins = Pins(store=store, records=records, listing=listing, standing=standing, views=views, pinning=pinning)
    application.include_router(view_routes(looking, auth, policies=sorted(turns.policies)))
    application.include_router(summary_routes(summaries, auth))
    application.include_router(compact_routes(compactions, auth))
    application.include_router(pin_routes(pins, auth))
    application.include_router(
        passthrough_routes(router, parts.providers, auth, body_limit_bytes=settings.server.body_limit_bytes)
    )
    install_error_handlers(application)
    application.openapi = describe(application)  # type: ignore[method-assign]  # how FastAPI wants it
    application.add_middleware(BodyLimit, limit_bytes=settings.server.body_limit_bytes)
    application.add_middleware(RequestIds, new_request_id=_new_request_id)
    return Front(chat, application)


@asynccontextmanager
async def _lifespan(
    parts: _Parts, windows: Windows, seeds: dict[str, Calibration], settings: Settings, application: FastAPI
) -> AsyncIterator[None]:
    """Open what needs the event loop; at the end finish what runs, then close it in reverse."""
    await parts.store.open()
    await parts.auth.open()
    parts.leases.start()
    parts.retention.start()
    await asyncio.to_thread(_warm_up, settings)
    windows.prefetch(parts.providers)
    for model_key, facts in (await parts.store.model_facts()).items():
        if "window" in facts:
            windows.learned(model_key, int(facts["window"]))
        if "calibration" in facts:
            seeds[model_key] = Calibration.from_dict(facts["calibration"])
    _spare_the_collector()
    try:
        yield
    finally:
        await parts.retention.aclose()
        await parts.preparing.aclose()
        await parts.tasks.aclose(LAST_WRITES_SECONDS)
        await parts.compactor.aclose()
        await windows.aclose()
        await parts.leases.aclose()
        for provider in parts.providers:
            await provider.aclose()
        await parts.store.close()


def _warm_up(settings: Settings) -> None:
    """Load the tokenizers in use: the first count with each takes half a second that no request should wait for."""
    deployments = [deployment for model in settings.served_models.values() for deployment in model.expanded()]
    named = {deployment.encoding or encoding_for(deployment.model or "") for deployment in deployments}
    for encoding in named or {encoding_for("")}:
        _counter_for(encoding).count("warm")


def _spare_the_collector() -> None:
    """Let the garbage collector run less often, and never over what was there at the start.

    With the defaults it takes an eighth of the time of a request; what requests leave behind has no cycles to speak of.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _auth(settings: Settings, store: Store) -> Auth:
    section = settings.auth
    rules = AuthRules(
        mode=section.mode,
        pepper=section.pepper.get_secret_value() if section.pepper else None,
        cache_seconds=section.cache_seconds,
        end_user_header=section.end_user_header.lower() if section.end_users else None,
    )
    return Auth(store, rules, now=_utc_now, seconds=time.monotonic, random_bytes=secrets.token_bytes)


def _router(settings: Settings, routes: Mapping[str, ModelRoute], providers: Mapping[str, Provider]) -> Router:
    """A router with breakers of its own: summaries that fail must not keep a client from its answer."""
    return Router(
        routes,
        providers,
        RetryPolicy(**settings.retries.model_dump()),
        sleep=asyncio.sleep,
        clock=time.monotonic,
        random=random.random,
    )


def _providers(settings: Settings) -> dict[str, Provider]:
    """Every configured provider by name; the simulated model where there is none."""
    if settings.uses_simulated_model:
        simulator = Simulator(SimulatorOptions(), _counter_for_model, clock=time.time, new_id=lambda: uuid.uuid4().hex)
        return {SIMULATOR: SimulatedProvider(simulator, SIMULATOR)}
    return {name: _provider(name, section) for name, section in settings.providers.items()}


def _provider(name: str, section: ProviderSettings) -> Provider:
    timeouts = section.timeouts
    return OpenAIProvider(
        name,
        section.base_url,
        section.api_key.get_secret_value() if section.api_key else None,
        Timeouts(
            connect_seconds=timeouts.connect_seconds,
            first_byte_seconds=timeouts.first_byte_seconds,
            between_bytes_seconds=timeouts.between_bytes_seconds,
            whole_seconds=timeouts.total_seconds,
        ),
        headers={header: value.get_secret_value() for header, value in section.headers.items()},
        auth_header=section.auth_header,
    )


def _routes(settings: Settings) -> dict[str, ModelRoute]:
    """What each model name stands for."""
    if settings.uses_simulated_model:
        return {EVERY_MODEL: ModelRoute((Place(SIMULATOR),))}
    return {
        name: ModelRoute(
            tuple(_place(deployment, settings) for deployment in model.expanded()), fallbacks=model.fallbacks
        )
        for name, model in settings.served_models.items()
    }


def _place(deployment: DeploymentSettings, settings: Settings) -> Place:
    quirks = deployment.quirks.over(settings.providers[deployment.provider].quirks)
    return Place(
        provider=deployment.provider,
        model=deployment.model,
        context_window=deployment.context_window,
        max_output_tokens=deployment.max_output_tokens,
        encoding=deployment.encoding,
        quirks=Quirks(**quirks.model_dump()),
    )


def _counter_for_model(model: str) -> TokenCounter:
    return _counter_for(encoding_for(model))


@functools.cache
def _counter_for(encoding: str) -> TokenCounter:
    return TokenCounter(tokenizer_for(encoding))


def _greeting(settings: Settings) -> str:
    """What the start line says beside the address."""
    if settings.uses_simulated_model:
        return "SIMULATED MODEL: no provider is configured, answers are made up"
    return f"providers: {', '.join(settings.providers)}"


def _simulated_window(model: str) -> tuple[int, None, None]:
    return window_of(model), None, None


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _new_request_id() -> str:
    return f"req_{_ids.randbytes(16).hex()}"


def _new_completion_id() -> str:
    return f"chatcmpl-{_ids.randbytes(14).hex()}"
