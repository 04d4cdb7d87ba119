"""Builds the engine of a process: each part once, passed as an argument to the parts that use it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.api.edge.auth import Authenticator, AuthRules
from app.assembly.dependencies import DEFAULT_DEPENDENCIES, Dependencies
from app.assembly.providers_and_routes import (
    build_context_windows,
    build_deployment_routes,
    build_policy,
    build_providers,
    build_router,
)
from app.assembly.telemetry import build_metrics, build_overview, build_tracing
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.context.count.token_counter import load_token_counter
from app.conversation.identity import PrefixCache
from app.conversations.erase.retention_sweeper import RetentionSweeper
from app.observability.metric_families import BACKGROUND_TASKS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.overview import MetricsOverview
from app.observability.tracing import Tracing
from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.idempotency_keys import IdempotencyKeys
from app.pipeline.admission.request_coalescing import RequestCoalescer
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.call.search_tool_loop import SearchToolLoop
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.pipeline import ClockAndIds, Pipeline
from app.pipeline.resolve.answer_anchors import AnswerAnchors
from app.pipeline.resolve.calibration_slopes import SLOPES_FACT, CalibrationSlopes
from app.pipeline.resolve.client_history_matching import RememberedPrefix
from app.pipeline.resolve.conversation_resolver import ConversationResolver
from app.pipeline.resolve.history_alignment import HistoryAligner
from app.pipeline.resolve.model_context import ModelContexts
from app.pipeline.respond.response_delivery import ResponseDelivery
from app.pipeline.token_counting import MessageCounter
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.pins import PinUpdater
from app.pipeline.view.quotations import QuotationBuilder
from app.pipeline.view.view_builder import ViewBuilder
from app.settings import Settings
from app.store.contract import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.measured_store import measure_store
from app.upstream.provider_contract import UpstreamProvider
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router

SHUTDOWN_TIMEOUT_SECONDS: Final = 5.0
"""How long a stop waits for background tasks. The server has drained the requests before; what is left are writes."""
_id_generator: Final = random.Random(secrets.randbits(256))  # noqa: S311 - see below
"""For ids, which must not collide, but may be guessed: an id is of no use to another tenant."""


@dataclass(frozen=True, slots=True)
class GatewayEngine:
    """The parts of a process that endpoints are built from."""

    dependencies: Dependencies
    store: Store
    leases: LeaseKeeper
    background_tasks: BackgroundTasks
    message_counter: MessageCounter
    providers: Mapping[str, UpstreamProvider]
    router: Router
    context_windows: ContextWindows
    calibration_slopes: CalibrationSlopes
    view_builder: ViewBuilder
    message_search: MessageSearch
    pin_updater: PinUpdater
    model_contexts: ModelContexts
    answer_anchors: AnswerAnchors
    compactor: Compactor
    turn_compactor: TurnCompactor
    precompactor: Precompactor
    retention: RetentionSweeper
    pipeline: Pipeline
    admission: Admission
    request_coalescing: RequestCoalescer
    authenticator: Authenticator
    tracing: Tracing
    metrics: Metrics
    overview: MetricsOverview

    async def open(self) -> None:
        """Connects to the store, reads what earlier processes stored there, and starts the background work.

        Raises:
            StoreUnavailable: the store cannot be reached, or its schema is another version's.
        """
        # First: everything below uses the store.
        await self.store.open()
        await self.authenticator.initialize()
        self.leases.start()
        self.retention.start()
        if self.metrics.is_on:
            self.overview.start()
        # Only started here: the server does not wait for a provider that is slow or away.
        self.context_windows.prefetch_model_lists(tuple(self.providers.values()))
        for model_key, facts in (await self.store.read_model_facts()).items():
            if "window" in facts:
                self.context_windows.learn_limit(model_key, int(facts["window"]))
            self.calibration_slopes.restore_slopes(model_key, facts.get(SLOPES_FACT))

    async def aclose(self) -> None:
        """Finishes or cancels the running work, then closes each part before the parts that it uses."""
        await self.overview.aclose()
        await self.retention.aclose()
        # Before the background tasks: precompactions are among them, and the wait below is meant for writes, not for
        # calls of a model.
        await self.precompactor.aclose()
        await self.background_tasks.aclose(SHUTDOWN_TIMEOUT_SECONDS)
        # After the background tasks: a turn that is written adds anchors, and a closed `AnswerAnchors` ignores them.
        await self.answer_anchors.aclose()
        await self.compactor.aclose()
        await self.context_windows.aclose()
        # After all writes, which are fenced by leases, and before the store, which releases the leases.
        await self.leases.aclose()
        for provider in self.providers.values():
            await provider.aclose()
        await self.store.close()
        await self.tracing.aclose()
        self.metrics.close()


def build_engine(
    settings: Settings, metrics_folder: Path | None = None, dependencies: Dependencies = DEFAULT_DEPENDENCIES
) -> GatewayEngine:
    """Builds all parts of one process. Nothing is connected before `GatewayEngine.open`.

    Args:
        metrics_folder: the folder in which several processes count together; None: this process serves alone.
    """
    metrics = build_metrics(settings, metrics_folder)
    store, tasks = build_store(settings, metrics, dependencies), BackgroundTasks()
    message_counter = dependencies.create_message_counter(load_token_counter)
    metrics.watch_gauge(BACKGROUND_TASKS, lambda: tasks.running_count)
    leases = LeaseKeeper(
        store, holder=uuid.uuid4().hex, lease_seconds=settings.compaction.lease_seconds, metrics=metrics
    )
    providers, routes, windows = (
        build_providers(settings),
        build_deployment_routes(settings),
        build_context_windows(settings),
    )
    # Two routers, so that failed summarizer calls do not open the circuit breaker for answers.
    router, summary_router = (
        build_router(settings, routes, providers, metrics, purpose) for purpose in ("answer", "summary")
    )
    view_builder, message_search = ViewBuilder(store=store, message_counter=message_counter), MessageSearch(store)
    pin_updater = PinUpdater(store=store, message_counter=message_counter)
    calibration_slopes = CalibrationSlopes()
    compactor = Compactor(
        store=store,
        leases=leases,
        summary_generator=SummaryGenerator(
            router=summary_router, windows=windows, counter_for=load_token_counter, metrics=metrics
        ),
        counter_for=load_token_counter,
        metrics=metrics,
    )
    prefix_memory: PrefixCache[RememberedPrefix] = PrefixCache()
    answer_anchors = AnswerAnchors(store, tasks)
    history_aligner = HistoryAligner(store, message_counter)
    stored_answers = StoredAnswers(store, now=dependencies.now)
    conversation_resolver = ConversationResolver(
        store=store,
        stored_answers=stored_answers,
        leases=leases,
        message_counter=message_counter,
        prefix_memory=prefix_memory,
        history_aligner=history_aligner,
        answer_anchors=answer_anchors,
        random_bytes=random_bytes,
        lease_wait_seconds=settings.compaction.wait_seconds,
        serves_degraded=settings.degraded_mode == "serve",
    )
    turn_compactor = TurnCompactor(
        view_builder=view_builder,
        compactor=compactor,
        resolver=conversation_resolver,
        tasks=tasks,
        wait_seconds=settings.compaction.wait_seconds,
    )
    precompactor = Precompactor(
        view_builder=view_builder,
        turn_compactor=turn_compactor,
        compactor=compactor,
        message_search=message_search,
        tasks=tasks,
    )
    upstream_caller = UpstreamCaller(
        router=router,
        windows=windows,
        view_builder=view_builder,
        store=store,
        tasks=tasks,
        calibration_slopes=calibration_slopes,
    )
    search_tool_loop = SearchToolLoop(
        upstream_caller=upstream_caller,
        view_builder=view_builder,
        message_finder=message_search,
        message_counter=message_counter,
    )
    turn_writer = TurnWriter(
        store=store,
        leases=leases,
        message_counter=message_counter,
        prefix_memory=prefix_memory,
        history_aligner=history_aligner,
        anchors=answer_anchors,
        random_bytes=random_bytes,
        tasks=tasks,
    )
    model_contexts = ModelContexts(
        router=router,
        windows=windows,
        policies={name: build_policy(settings, name) for name in settings.policies},
        default_policy=settings.default_policy,
        model_policies={name: model.policy for name, model in settings.models.items() if model.policy},
        calibration_slopes=calibration_slopes,
        message_counter=message_counter,
    )
    pipeline = Pipeline(
        conversation_resolver=conversation_resolver,
        view_builder=view_builder,
        turn_compactor=turn_compactor,
        turn_writer=turn_writer,
        response_delivery=ResponseDelivery(
            turn_writer=turn_writer,
            upstream_caller=upstream_caller,
            search_tool_loop=search_tool_loop,
            precompactor=precompactor,
            completion_writer=CompletionWriter(store, clock=dependencies.now),
            tasks=tasks,
            metrics=metrics,
        ),
        search_tool_loop=search_tool_loop,
        quotation_builder=QuotationBuilder(
            view_builder=view_builder, message_search=message_search, message_counter=message_counter, tasks=tasks
        ),
        pin_updater=pin_updater,
        model_contexts=model_contexts,
        tasks=tasks,
        clock_and_ids=ClockAndIds(
            unix_seconds=time.time,
            new_completion_id=_generate_completion_id,
            heartbeat_seconds=dependencies.heartbeat_seconds,
        ),
    )
    admission = Admission(build_admission_bounds(settings), clock=time.monotonic, metrics=metrics)
    return GatewayEngine(
        dependencies=dependencies,
        store=store,
        leases=leases,
        background_tasks=tasks,
        message_counter=message_counter,
        providers=providers,
        router=router,
        context_windows=windows,
        calibration_slopes=calibration_slopes,
        view_builder=view_builder,
        message_search=message_search,
        pin_updater=pin_updater,
        model_contexts=model_contexts,
        answer_anchors=answer_anchors,
        compactor=compactor,
        turn_compactor=turn_compactor,
        precompactor=precompactor,
        retention=build_retention_sweeper(settings, store, leases, dependencies),
        pipeline=pipeline,
        admission=admission,
        request_coalescing=_build_request_coalescing(
            settings, dependencies, store, stored_answers, pipeline, tasks, admission
        ),
        authenticator=_build_authenticator(settings, store, dependencies),
        tracing=build_tracing(settings),
        metrics=metrics,
        overview=build_overview(settings, metrics),
    )


def build_store(
    settings: Settings, metrics: Metrics = NO_METRICS, dependencies: Dependencies = DEFAULT_DEPENDENCIES
) -> Store:
    """Builds the configured store, not yet connected. It encrypts texts while an encryption key is active."""
    store = dependencies.create_store(
        settings.database.url.get_secret_value(),
        synchronous=settings.database.synchronous,
        timeout_seconds=settings.database.timeout_seconds,
        pool_size=settings.database.pool_size,
        statement_cache_size=settings.database.statement_cache_size,
    )
    # Also without a key: `EncryptedStore` then makes sure that ciphertext is never taken for text.
    return EncryptedStore(
        measure_store(store, metrics), Cipher(settings.encryption.key_bytes, settings.encryption.active)
    )


def build_retention_sweeper(
    settings: Settings, store: Store, leases: LeaseKeeper, dependencies: Dependencies = DEFAULT_DEPENDENCIES
) -> RetentionSweeper:
    """Builds the sweeper that erases old conversations by the configured rules."""
    return RetentionSweeper(
        store=store,
        leases=leases,
        days=settings.retention.days,
        end_users=settings.auth.end_users,
        sweep_seconds=settings.retention.sweep_seconds,
        clock=dependencies.now,
        random=random.random,
    )


def build_admission_bounds(settings: Settings) -> AdmissionBounds:
    """Builds the bounds for model requests that run and wait in this process."""
    section = settings.limits
    return AdmissionBounds(
        max_running=section.max_concurrent_requests,
        max_running_per_tenant=section.max_concurrent_per_tenant,
        max_waiting=section.max_waiting,
        max_wait_seconds=section.max_wait_seconds,
    )


def _build_request_coalescing(
    settings: Settings,
    dependencies: Dependencies,
    store: Store,
    stored_answers: StoredAnswers,
    pipeline: Pipeline,
    tasks: BackgroundTasks,
    admission: Admission,
) -> RequestCoalescer:
    idempotency_keys = IdempotencyKeys(
        store=store,
        tasks=tasks,
        new_holder=lambda: random_bytes(16).hex(),
        wait_seconds=settings.compaction.wait_seconds,
        clock=time.monotonic,
        sleep=asyncio.sleep,
        random=random.random,
    )
    return RequestCoalescer(
        pipeline=pipeline,
        stored_answers=stored_answers,
        idempotency_keys=idempotency_keys,
        tasks=tasks,
        clock=time.monotonic,
        now=dependencies.now,
        admission=admission,
    )


def _build_authenticator(settings: Settings, store: Store, dependencies: Dependencies) -> Authenticator:
    section = settings.auth
    rules = AuthRules(
        mode=section.mode,
        pepper=section.pepper.get_secret_value() if section.pepper else None,
        cache_seconds=section.cache_seconds,
        end_user_header=section.end_user_header.lower() if section.end_users else None,
        allowed_hosts=section.allowed_hosts,
    )
    return Authenticator(store, rules, now=dependencies.now, seconds=time.monotonic, random_bytes=secrets.token_bytes)


def random_bytes(count: int) -> bytes:
    """Returns random bytes for ids. They can be predicted, so they must not be used for secrets."""
    return _id_generator.randbytes(count)


def _generate_completion_id() -> str:
    return f"chatcmpl-{random_bytes(14).hex()}"
