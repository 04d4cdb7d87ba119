"""The engine of a process: each part is built once and is an argument of the parts that use it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Final

from app.api.edge.auth import Authenticator, AuthRules
from app.api.edge.body_budget import BodyBudget
from app.api.responses_request_parser import ResponsesRequestParser
from app.assembly.dependencies import DEFAULT_DEPENDENCIES, Dependencies
from app.assembly.providers_and_routes import (
    build_context_windows,
    build_deployment_routes,
    build_learned_limits,
    build_policy,
    build_providers,
    build_router,
)
from app.assembly.telemetry import build_metrics, build_overview, build_recent_requests, build_tracing
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.context.count.token_counter import load_token_counter
from app.conversation.identity import PrefixCache
from app.conversations.answer_fingerprints import COUNT_FACT, count_existing_answers, is_count_complete
from app.conversations.erase.retention_sweeper import RetentionSweeper
from app.observability.metric_families import BACKGROUND_TASKS
from app.observability.metrics import NO_METRICS, Metrics
from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.call_limits import CallLimits, RateSettings
from app.pipeline.admission.idempotency_keys import IdempotencyKeys
from app.pipeline.admission.rate_limits import RateLimits
from app.pipeline.admission.request_coalescing import RequestCoalescer
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.call.overflow_recovery import OverflowRecovery
from app.pipeline.call.search_tool_loop import SearchToolLoop
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.call.window_learning import ModelFactWriter, WindowLearner
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.persist.unwritten_fingerprints import UnwrittenFingerprints
from app.pipeline.pipeline import ClockAndIds, Pipeline
from app.pipeline.resolve.calibration_slopes import SLOPES_FACT, CalibrationSlopes
from app.pipeline.resolve.client_history import PrefixMemory
from app.pipeline.resolve.conversation_resolver import ConversationResolver
from app.pipeline.resolve.model_context import ModelContexts
from app.pipeline.respond.response_delivery import ResponseDelivery
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.pins import PinUpdater
from app.pipeline.view.quotations import QuotationBuilder
from app.pipeline.view.view_builder import ViewBuilder
from app.settings import Settings
from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.key_budgets import KeyBudgets
from app.store.leases import LeaseKeeper
from app.store.measured_store import measure_store
from app.store.usage_recorder import UsageRecorder
from app.store.write_health import WriteHealth
from app.upstream.routing.router import Router

SHUTDOWN_TIMEOUT_SECONDS: Final = 5.0
"""How long a stop waits for background tasks. The server has drained the requests before; what is left are writes."""
COUNT_WAIT_SECONDS: Final = 24 * 3600.0
"""How long a start waits for another process that counts existing answers."""
_id_generator: Final = random.Random(secrets.randbits(256))  # noqa: S311 - see below
"""For ids, which must not collide, but may be guessed: an id is of no use to another tenant."""


class GatewayEngine:
    """The parts of one process that endpoints are built from. Each part is built once, when it is used first, so that
    no order of building needs to be kept. Nothing is connected before `open`.

    Args:
        metrics_folder: the folder in which several processes count together; None: this process serves alone.
    """

    def __init__(
        self, settings: Settings, metrics_folder: Path | None = None, dependencies: Dependencies = DEFAULT_DEPENDENCIES
    ) -> None:
        self._settings = settings
        self.dependencies = dependencies
        self.metrics = build_metrics(settings, metrics_folder)
        self.tracing = build_tracing(settings)
        self.recent_requests = build_recent_requests(settings, metrics_folder)
        self.overview = build_overview(settings, self.metrics)
        self.background_tasks = BackgroundTasks()
        self.metrics.watch_gauge(BACKGROUND_TASKS, lambda: self.background_tasks.running_count)
        self.store = build_store(settings, self.metrics, dependencies)
        self.providers = build_providers(settings)
        self._learned_limits = build_learned_limits(settings, dependencies.now)
        self.context_windows = build_context_windows(settings, self._learned_limits)
        self.message_counter = dependencies.create_message_counter(load_token_counter)
        self.message_search = MessageSearch(self.store)
        self.calibration_slopes = CalibrationSlopes()
        self.unwritten_fingerprints = UnwrittenFingerprints(self.store)
        self.usage = UsageRecorder(self.store, now=dependencies.now, metrics=self.metrics)
        self.key_budgets = KeyBudgets(
            self.store,
            self.usage,
            holder=uuid.uuid4().hex,
            now=dependencies.now,
            new_id=lambda: random_bytes(16).hex(),
            metrics=self.metrics,
        )
        self.call_limits = build_call_limits(settings, self.key_budgets, RateLimits(self.store, self.background_tasks))
        self.admission = Admission(build_admission_bounds(settings), clock=time.monotonic, metrics=self.metrics)
        self.body_budget = BodyBudget(settings.limits.max_concurrent_body_bytes, settings.server.body_limit_bytes)
        self._prefix_memory: PrefixMemory = PrefixCache()

    async def open(self) -> None:
        """Connects to the store, reads what earlier processes stored there, and starts the background work.

        Raises:
            StoreUnavailable: the store cannot be reached, or its schema is another version's.
        """
        # First: everything below uses the store.
        await self.store.open()
        await self.authenticator.initialize()
        self.leases.start()
        model_facts = await self.store.read_model_facts()
        if not is_count_complete(model_facts):
            # One process counts; the others wait for it and find nothing left to count.
            async with self.leases.hold_lease(COUNT_FACT, COUNT_FACT, COUNT_WAIT_SECONDS):
                await count_existing_answers(self.store, self.store)
        self.retention.start()
        self.usage.start()
        self.key_budgets.start()
        if self.metrics.is_on:
            self.overview.start()
        # Only started here: the server does not wait for a provider that is slow or away.
        self.context_windows.prefetch_model_lists(tuple(self.providers.values()))
        self._learned_limits.restore(model_facts)
        for model_key, facts in model_facts.items():
            self.calibration_slopes.restore_slopes(model_key, facts.get(SLOPES_FACT))

    async def aclose(self) -> None:
        """Finishes or cancels the running work, then closes each part before the parts that it uses."""
        await self.overview.aclose()
        await self.retention.aclose()
        # Before the background tasks: precompactions are among them, and the wait below is meant for writes, not for
        # calls of a model.
        await self.precompactor.aclose()
        await self.background_tasks.aclose(SHUTDOWN_TIMEOUT_SECONDS)
        # After the background tasks: a turn that is written may leave fingerprints.
        await self.unwritten_fingerprints.aclose()
        await self.compactor.aclose()
        await self.context_windows.aclose()
        # After the last model call.
        await self.key_budgets.aclose()
        await self.usage.aclose()
        # After all writes, which are fenced by leases, and before the store, which releases the leases.
        await self.leases.aclose()
        for provider in self.providers.values():
            await provider.aclose()
        await self.store.close()
        await self.tracing.aclose()
        if self.recent_requests is not None:
            self.recent_requests.close()

    @cached_property
    def leases(self) -> LeaseKeeper:
        return LeaseKeeper(
            self.store,
            holder=uuid.uuid4().hex,
            lease_seconds=self._settings.compaction.lease_seconds,
            metrics=self.metrics,
        )

    @cached_property
    def router(self) -> Router:
        return self._build_router("answer")

    def _build_router(self, purpose: str) -> Router:
        # One router for each purpose, so that failed summarizer calls do not open the circuit breaker for answers.
        return build_router(
            self._settings, build_deployment_routes(self._settings), self.providers, self.metrics, purpose
        )

    @cached_property
    def responses_parser(self) -> ResponsesRequestParser:
        return ResponsesRequestParser(
            keeps_context=self._settings.privacy.store_false == "context",
            now=self.dependencies.now,
            random_bytes=random_bytes,
        )

    @cached_property
    def view_builder(self) -> ViewBuilder:
        return ViewBuilder(store=self.store, message_counter=self.message_counter)

    @cached_property
    def pin_updater(self) -> PinUpdater:
        return PinUpdater(store=self.store, message_counter=self.message_counter)

    @cached_property
    def compactor(self) -> Compactor:
        return Compactor(
            store=self.store,
            leases=self.leases,
            summary_generator=SummaryGenerator(
                router=self._build_router("summary"),
                windows=self.context_windows,
                counter_for=load_token_counter,
                usage=self.usage,
                key_budgets=self.key_budgets,
                metrics=self.metrics,
            ),
            counter_for=load_token_counter,
            metrics=self.metrics,
        )

    @cached_property
    def _stored_answers(self) -> StoredAnswers:
        return StoredAnswers(self.store, now=self.dependencies.now)

    @cached_property
    def _conversation_resolver(self) -> ConversationResolver:
        return ConversationResolver(
            store=self.store,
            stored_answers=self._stored_answers,
            leases=self.leases,
            message_counter=self.message_counter,
            prefix_memory=self._prefix_memory,
            unwritten_fingerprints=self.unwritten_fingerprints,
            random_bytes=random_bytes,
            lease_wait_seconds=self._settings.compaction.wait_seconds,
            serves_degraded=self._settings.degraded_mode == "serve",
        )

    @cached_property
    def turn_compactor(self) -> TurnCompactor:
        return TurnCompactor(
            view_builder=self.view_builder,
            compactor=self.compactor,
            resolver=self._conversation_resolver,
            tasks=self.background_tasks,
            wait_seconds=self._settings.compaction.wait_seconds,
        )

    @cached_property
    def precompactor(self) -> Precompactor:
        return Precompactor(
            view_builder=self.view_builder,
            turn_compactor=self.turn_compactor,
            compactor=self.compactor,
            message_search=self.message_search,
            tasks=self.background_tasks,
        )

    @cached_property
    def _upstream_caller(self) -> UpstreamCaller:
        return UpstreamCaller(
            router=self.router,
            windows=self.context_windows,
            view_builder=self.view_builder,
            store=self.store,
            window_learner=self.window_learner,
            fact_writer=self._fact_writer,
            calibration_slopes=self.calibration_slopes,
        )

    @cached_property
    def _fact_writer(self) -> ModelFactWriter:
        return ModelFactWriter(self.store, self.background_tasks)

    @cached_property
    def window_learner(self) -> WindowLearner:
        return WindowLearner(
            self._learned_limits,
            model_facts=self.store,
            fact_writer=self._fact_writer,
            tasks=self.background_tasks,
        )

    @cached_property
    def _search_tool_loop(self) -> SearchToolLoop:
        return SearchToolLoop(
            upstream_caller=self._upstream_caller,
            view_builder=self.view_builder,
            message_finder=self.message_search,
            message_counter=self.message_counter,
        )

    @cached_property
    def _turn_writer(self) -> TurnWriter:
        return TurnWriter(
            store=self.store,
            leases=self.leases,
            message_counter=self.message_counter,
            prefix_memory=self._prefix_memory,
            unwritten_fingerprints=self.unwritten_fingerprints,
            random_bytes=random_bytes,
            tasks=self.background_tasks,
        )

    @cached_property
    def model_contexts(self) -> ModelContexts:
        settings = self._settings
        return ModelContexts(
            routes=self.router.routes,
            windows=self.context_windows,
            policies={name: build_policy(settings, name) for name in settings.policies},
            default_policy=settings.default_policy,
            model_policies={name: model.policy for name, model in settings.models.items() if model.policy},
            calibration_slopes=self.calibration_slopes,
            message_counter=self.message_counter,
        )

    @cached_property
    def _response_delivery(self) -> ResponseDelivery:
        return ResponseDelivery(
            turn_writer=self._turn_writer,
            upstream_caller=self._upstream_caller,
            window_learner=self.window_learner,
            search_tool_loop=self._search_tool_loop,
            precompactor=self.precompactor,
            completion_writer=CompletionWriter(self.store, clock=self.dependencies.now),
            tasks=self.background_tasks,
            message_counter=self.message_counter,
            usage=self.usage,
            metrics=self.metrics,
        )

    @cached_property
    def pipeline(self) -> Pipeline:
        return Pipeline(
            conversation_resolver=self._conversation_resolver,
            view_builder=self.view_builder,
            turn_compactor=self.turn_compactor,
            precompactor=self.precompactor,
            turn_writer=self._turn_writer,
            response_delivery=self._response_delivery,
            upstream_caller=self._upstream_caller,
            window_learner=self.window_learner,
            overflow_recovery=OverflowRecovery(view_builder=self.view_builder, turn_compactor=self.turn_compactor),
            search_tool_loop=self._search_tool_loop,
            quotation_builder=QuotationBuilder(
                view_builder=self.view_builder,
                message_search=self.message_search,
                message_counter=self.message_counter,
                tasks=self.background_tasks,
            ),
            pin_updater=self.pin_updater,
            model_contexts=self.model_contexts,
            tasks=self.background_tasks,
            clock_and_ids=ClockAndIds(
                unix_seconds=time.time,
                new_completion_id=_generate_completion_id,
                heartbeat_seconds=self.dependencies.heartbeat_seconds,
            ),
        )

    @cached_property
    def request_coalescing(self) -> RequestCoalescer:
        idempotency_keys = IdempotencyKeys(
            keys=self.store,
            conversations=self.store,
            tasks=self.background_tasks,
            new_holder=lambda: random_bytes(16).hex(),
            wait_seconds=self._settings.compaction.wait_seconds,
            clock=time.monotonic,
            sleep=asyncio.sleep,
            random=random.random,
        )
        return RequestCoalescer(
            pipeline=self.pipeline,
            stored_answers=self._stored_answers,
            idempotency_keys=idempotency_keys,
            tasks=self.background_tasks,
            clock=time.monotonic,
            now=self.dependencies.now,
            admission=self.admission,
            limits=self.call_limits,
        )

    @cached_property
    def authenticator(self) -> Authenticator:
        section = self._settings.auth
        rules = AuthRules(
            mode=section.mode,
            pepper=section.pepper.get_secret_value() if section.pepper else None,
            cache_seconds=section.cache_seconds,
            end_user_header=section.end_user_header.lower() if section.end_users else None,
            allowed_hosts=section.allowed_hosts,
            operator_token=self._settings.operator_token,
            config_option=self._settings.config_option,
        )
        return Authenticator(
            self.store,
            rules,
            conversations=self.store,
            now=self.dependencies.now,
            seconds=time.monotonic,
            random_bytes=secrets.token_bytes,
        )

    @cached_property
    def retention(self) -> RetentionSweeper:
        return build_retention_sweeper(self._settings, self.store, self.leases, self.dependencies, self.metrics)

    def list_dead_loops(self) -> list[str]:
        """Returns the names of the background loops that have ended although the process runs."""
        loops = (
            self.leases.renewals,
            self.retention.sweeps,
            self.usage.writes,
            self.overview.sampling,
            self.key_budgets.renewals,
        )
        return [loop.name for loop in loops if loop.is_dead]


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
        measure_store(store, metrics, WriteHealth(time.monotonic)),
        Cipher(settings.encryption.key_bytes, settings.encryption.active),
    )


def build_retention_sweeper(
    settings: Settings,
    store: Store,
    leases: LeaseKeeper,
    dependencies: Dependencies = DEFAULT_DEPENDENCIES,
    metrics: Metrics = NO_METRICS,
) -> RetentionSweeper:
    """Builds the sweeper that erases old conversations by the configured rules."""
    return RetentionSweeper(
        store=store,
        keys=store,
        leases=leases,
        days=settings.retention.days,
        context_hours=settings.retention.context_hours,
        sweep_seconds=settings.retention.sweep_seconds,
        clock=dependencies.now,
        random=random.random,
        metrics=metrics,
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


def build_call_limits(settings: Settings, key_budgets: KeyBudgets, rates: RateLimits) -> CallLimits:
    """Builds the limits of callers: budgets and rates."""
    section = settings.limits
    return CallLimits(
        key_budgets,
        rates,
        requests=RateSettings(**section.requests_per_minute.model_dump()),
        tokens=RateSettings(**section.tokens_per_minute.model_dump()),
        assumed_answer_tokens=section.assumed_answer_tokens,
    )


def random_bytes(count: int) -> bytes:
    """Returns random bytes for ids. They can be predicted, so they must not be used for secrets."""
    return _id_generator.randbytes(count)


def _generate_completion_id() -> str:
    return f"chatcmpl-{random_bytes(14).hex()}"
