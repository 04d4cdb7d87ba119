"""The gateway of one process: each part is built once, from the parts above it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from app.api.answer_endpoint import AnswerEndpoint, RequestListLimits
from app.api.chat_request_parser import parse_chat_request
from app.api.edge.auth import Authenticator, AuthRules
from app.api.edge.request_reader import BodyBudget
from app.api.messages_request_parser import parse_messages_request
from app.api.responses_request_parser import ResponsesRequestParser
from app.assembly.dependencies import DEFAULT_DEPENDENCIES, Dependencies
from app.assembly.providers_and_routes import (
    build_context_windows,
    build_deployment_routes,
    build_embedders,
    build_learned_limits,
    build_policy,
    build_providers,
    warm_up_tokenizers,
)
from app.assembly.telemetry import build_metrics, build_overview, build_tracing
from app.compaction.capsule import CapsuleSealer
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.compaction.summary_maker import SummaryMaker
from app.context.count.token_counter import load_token_counter
from app.conversation.identity import PrefixCache
from app.conversations.answer_fingerprints import COUNT_FACT, count_existing_answers, is_count_complete
from app.conversations.erase.retention_sweeper import RetentionSweeper
from app.observability.metric_families import BACKGROUND_TASKS
from app.observability.metrics import NO_METRICS, Metrics
from app.pipeline.admission.admission import Admission, AdmissionBounds, CallLimits, RateSettings
from app.pipeline.admission.idempotency_keys import IdempotencyKeys
from app.pipeline.admission.shared_attempts import SharedAttempts
from app.pipeline.call.overflow_recovery import OverflowRecovery
from app.pipeline.call.search_tool_loop import SearchToolLoop
from app.pipeline.call.upstream_call import UpstreamCaller
from app.pipeline.call.window_learning import ModelFactWriter, WindowLearner
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.pipeline import ClockAndIds, Pipeline
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.resolve.client_history import PrefixMemory
from app.pipeline.resolve.conversation_resolver import ConversationResolver
from app.pipeline.resolve.model_context import ModelContexts
from app.pipeline.respond.answer_learning import AnswerLearner
from app.pipeline.respond.lone_compaction import LoneCompactions
from app.pipeline.respond.response_delivery import ResponseDelivery
from app.pipeline.respond.turn_finisher import AnswerBilling, TurnFinisher
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.last_view_and_calibration import SLOPES_FACT, CalibrationSlopes
from app.pipeline.view.meaning_search import MeaningSearch
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.pins import PinUpdater
from app.pipeline.view.quotations import QuotationBuilder
from app.pipeline.view.view_builder import ViewBuilder
from app.settings import Settings
from app.settings.sections import KEY_BYTES
from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import encrypt_store
from app.store.key_budgets import KeyBudgets
from app.store.leases import LeaseKeeper
from app.store.measured_store import WriteHealth, measure_store
from app.store.rate_limits import RateLimits
from app.store.request_history import RequestHistory
from app.store.unwritten_fingerprints import UnwrittenFingerprints
from app.store.usage_recorder import UsageRecorder
from app.upstream.routing.router import RetryPolicy, Router

SIMULATED_HEADER: Final = {"x-concertina-simulated": "true"}
"""Sent with every answer of a model while no provider is configured."""
SHUTDOWN_TIMEOUT_SECONDS: Final = 5.0
"""How long a stop waits for background tasks. The server has drained the requests before; what is left are writes."""
CAPSULE_KEY: Final = "capsule_key"
"""The name of the stored secret that seals capsules if the settings name no key."""
COUNT_WAIT_SECONDS: Final = 24 * 3600.0
"""How long a start waits for another process that counts existing answers."""
_id_generator: Final = random.Random(secrets.randbits(256))  # noqa: S311 - see below
"""For ids, which must not collide, but may be guessed: an id is of no use to another tenant."""


class Gateway:
    """All parts of one process. Nothing is connected before `open`.

    Args:
        metrics_folder: the folder in which several processes count together; None: this process serves alone.
    """

    def __init__(
        self, settings: Settings, metrics_folder: Path | None = None, dependencies: Dependencies = DEFAULT_DEPENDENCIES
    ) -> None:
        self.settings = settings
        self.dependencies = dependencies
        self.now = dependencies.now
        self.unix_seconds = lambda: dependencies.now().timestamp()
        self.metrics = build_metrics(settings, metrics_folder)
        self.tracing = build_tracing(settings)
        self.overview = build_overview(settings, self.metrics)
        self.tasks = BackgroundTasks()
        self.metrics.watch_gauge(BACKGROUND_TASKS, lambda: self.tasks.running_count)
        self._build_store()
        self._build_models()
        self._build_compaction()
        self._build_upstream_calls()
        self._build_pipeline()
        self._build_model_call_endpoints()

    def _build_store(self) -> None:
        """Builds the store, and what keeps numbers, leases, budgets and requests in it."""
        settings, metrics, now = self.settings, self.metrics, self.now
        self.store = build_store(settings, metrics, self.dependencies)
        self.leases = LeaseKeeper(
            self.store, holder=uuid.uuid4().hex, lease_seconds=settings.compaction.lease_seconds, metrics=metrics
        )
        self.retention = build_retention_sweeper(settings, self.store, self.leases, self.dependencies, metrics)
        self.usage = UsageRecorder(self.store, now=now, metrics=metrics)
        self.key_budgets = KeyBudgets(
            self.store,
            self.usage,
            holder=uuid.uuid4().hex,
            now=now,
            new_id=lambda: random_bytes(16).hex(),
            metrics=metrics,
        )
        count = settings.telemetry.recent_requests
        kept = self.store if settings.retention.request_hours else None
        self.requests = RequestHistory(count, kept, metrics=metrics) if count else None
        self.unwritten_fingerprints = UnwrittenFingerprints(self.store)
        self.stored_answers = StoredAnswers(self.store, now=now)
        self.prefix_memory: PrefixMemory = PrefixCache()

    def _build_models(self) -> None:
        """Builds providers, routers, windows, policies and token counters."""
        settings, metrics = self.settings, self.metrics
        self.message_counter = self.dependencies.create_message_counter(load_token_counter)
        self.providers = build_providers(settings)
        self.learned_limits = build_learned_limits(settings, self.unix_seconds)
        self.context_windows = build_context_windows(settings, self.learned_limits)
        # One router for each purpose, so that failed summarizer calls do not open the circuit breaker for answers.
        self.router, self.summary_router = (
            Router(
                build_deployment_routes(settings),
                self.providers,
                RetryPolicy(**settings.retries.model_dump()),
                sleep=asyncio.sleep,
                clock=time.monotonic,
                random=random.random,
                metrics=metrics,
                purpose=purpose,
            )
            for purpose in ("answer", "summary")
        )
        self.calibration_slopes = CalibrationSlopes()
        self.policies = {name: build_policy(settings, name) for name in settings.policies}
        self.model_contexts = ModelContexts(
            routes=self.router.routes,
            windows=self.context_windows,
            policies=self.policies,
            default_policy=settings.default_policy,
            model_policies={name: model.policy for name, model in settings.models.items() if model.policy},
            calibration_slopes=self.calibration_slopes,
            message_counter=self.message_counter,
        )

    def _build_compaction(self) -> None:
        """Builds views and summaries, for this turn and ahead of the next one."""
        settings, store, counter, tasks = self.settings, self.store, self.message_counter, self.tasks
        self.message_search = MessageSearch(store)
        self.capsule_sealer = CapsuleSealer(settings.compaction.capsule_key_bytes)
        self.view_builder = ViewBuilder(store=store, message_counter=counter, unix_seconds=self.unix_seconds)
        self.pin_updater = PinUpdater(store=store, message_counter=counter)
        summary_generator = SummaryGenerator(
            router=self.summary_router,
            windows=self.context_windows,
            counter_for=load_token_counter,
            usage=self.usage,
            key_budgets=self.key_budgets,
            metrics=self.metrics,
        )
        summary_maker = SummaryMaker(
            store=store, leases=self.leases, summary_generator=summary_generator, counter_for=load_token_counter
        )
        self.compactor = Compactor(maker=summary_maker, metrics=self.metrics)
        self.conversation_resolver = ConversationResolver(
            store=store,
            stored_answers=self.stored_answers,
            leases=self.leases,
            message_counter=counter,
            prefix_memory=self.prefix_memory,
            unwritten_fingerprints=self.unwritten_fingerprints,
            capsule_sealer=self.capsule_sealer,
            random_bytes=random_bytes,
            lease_wait_seconds=settings.compaction.wait_seconds,
            serves_degraded=settings.degraded_mode == "serve",
        )
        self.turn_compactor = TurnCompactor(
            view_builder=self.view_builder,
            compactor=self.compactor,
            resolve_without_store=self.conversation_resolver.resolve_turn_without_store,
            wait_seconds=settings.compaction.wait_seconds,
        )
        self.precompactor = Precompactor(
            view_builder=self.view_builder,
            turn_compactor=self.turn_compactor,
            compactor=self.compactor,
            message_search=self.message_search,
            tasks=tasks,
        )

    def _build_upstream_calls(self) -> None:
        """Builds what calls a model and writes the turn."""
        store, counter, tasks = self.store, self.message_counter, self.tasks
        fact_writer = ModelFactWriter(store, tasks)
        self.window_learner = WindowLearner(
            self.learned_limits, model_facts=store, fact_writer=fact_writer, tasks=tasks
        )
        self.upstream_caller = UpstreamCaller(
            router=self.router,
            windows=self.context_windows,
            view_builder=self.view_builder,
            store=store,
            window_learner=self.window_learner,
            calibration_slopes=self.calibration_slopes,
        )
        self.search_tool_loop = SearchToolLoop(
            upstream_caller=self.upstream_caller,
            view_builder=self.view_builder,
            message_finder=self.message_search,
            message_counter=counter,
        )
        self.turn_writer = TurnWriter(
            store=store,
            leases=self.leases,
            message_counter=counter,
            prefix_memory=self.prefix_memory,
            unwritten_fingerprints=self.unwritten_fingerprints,
            random_bytes=random_bytes,
            tasks=tasks,
        )
        self.response_delivery = ResponseDelivery(
            turn_finisher=TurnFinisher(
                answer_billing=AnswerBilling(self.usage, self.metrics, counter, tasks),
                answer_learner=AnswerLearner(
                    upstream_caller=self.upstream_caller,
                    window_learner=self.window_learner,
                    calibration_slopes=self.calibration_slopes,
                    fact_writer=fact_writer,
                    metrics=self.metrics,
                    unix_seconds=self.unix_seconds,
                ),
                turn_writer=self.turn_writer,
                completion_writer=CompletionWriter(store, clock=self.now),
                upstream_caller=self.upstream_caller,
                precompactor=self.precompactor,
            ),
            turn_writer=self.turn_writer,
            search_tool_loop=self.search_tool_loop,
            tasks=tasks,
        )

    def _build_pipeline(self) -> None:
        """Builds the pipeline of an answer."""
        counter, tasks = self.message_counter, self.tasks
        self.capsule_builder = CapsuleBuilder(self.view_builder, self.capsule_sealer, time.time)
        self.pipeline = Pipeline(
            conversation_resolver=self.conversation_resolver,
            view_builder=self.view_builder,
            turn_compactor=self.turn_compactor,
            precompactor=self.precompactor,
            turn_writer=self.turn_writer,
            response_delivery=self.response_delivery,
            upstream_caller=self.upstream_caller,
            window_learner=self.window_learner,
            overflow_recovery=OverflowRecovery(view_builder=self.view_builder, turn_compactor=self.turn_compactor),
            search_tool_loop=self.search_tool_loop,
            quotation_builder=QuotationBuilder(
                view_builder=self.view_builder,
                message_search=self.message_search,
                meaning_search=MeaningSearch(
                    self.store, build_embedders(self.policies.values(), self.providers), tasks
                ),
                message_counter=counter,
                tasks=tasks,
            ),
            pin_updater=self.pin_updater,
            capsule_builder=self.capsule_builder,
            lone_compactions=LoneCompactions(self.turn_writer, self.capsule_builder),
            model_contexts=self.model_contexts,
            tasks=tasks,
            clock_and_ids=ClockAndIds(
                unix_seconds=time.time,
                new_completion_id=lambda: f"chatcmpl-{random_bytes(14).hex()}",
                heartbeat_seconds=self.dependencies.heartbeat_seconds,
            ),
        )

    def _build_model_call_endpoints(self) -> None:
        """Builds what lets requests in, and the endpoints of model calls."""
        settings, store, tasks = self.settings, self.store, self.tasks
        limits, auth = settings.limits, settings.auth
        self.body_budget = BodyBudget(limits.max_concurrent_body_bytes, settings.server.body_limit_bytes)
        rules = AuthRules(
            mode=auth.mode,
            pepper=auth.pepper.get_secret_value() if auth.pepper else None,
            cache_seconds=auth.cache_seconds,
            end_user_header=auth.end_user_header.lower() if auth.end_users else None,
            allowed_hosts=auth.allowed_hosts,
            operator_token=settings.operator_token,
            config_option=settings.config_option,
        )
        self.authenticator = Authenticator(
            store, rules, conversations=store, now=self.now, seconds=time.monotonic, random_bytes=secrets.token_bytes
        )
        self.admission = Admission(build_admission_bounds(settings), clock=time.monotonic, metrics=self.metrics)
        self.call_limits = CallLimits(
            self.key_budgets,
            RateLimits(store, tasks.spawn),
            requests=RateSettings(**limits.requests_per_minute.model_dump()),
            tokens=RateSettings(**limits.tokens_per_minute.model_dump()),
            assumed_answer_tokens=limits.assumed_answer_tokens,
        )
        idempotency_keys = IdempotencyKeys(
            store=store,
            stored_answers=self.stored_answers,
            tasks=tasks,
            new_holder=lambda: random_bytes(16).hex(),
            wait_seconds=settings.compaction.wait_seconds,
            clock=time.monotonic,
            sleep=asyncio.sleep,
            random=random.random,
        )
        shared_attempts = SharedAttempts(
            pipeline=self.pipeline,
            stored_answers=self.stored_answers,
            idempotency_keys=idempotency_keys,
            tasks=tasks,
            clock=time.monotonic,
            now=self.now,
            admission=self.admission,
            limits=self.call_limits,
        )
        keeps_context = settings.privacy.store_false == "context"
        self.responses_parser = ResponsesRequestParser(
            keeps_context=keeps_context, now=self.now, random_bytes=random_bytes
        )
        self.chat_endpoint, self.responses_endpoint, self.compaction_endpoint, self.messages_endpoint = (
            AnswerEndpoint(
                shared_attempts,
                self.authenticator,
                parse_request,
                RequestListLimits(limits.max_messages, limits.max_tools),
                extra_headers=SIMULATED_HEADER if settings.uses_simulated_model else {},
                context_detail=settings.server.context_detail,
                silence_seconds=self.dependencies.silence_seconds,
                metrics=self.metrics,
            )
            for parse_request in (
                parse_chat_request,
                self.responses_parser.parse,
                self.responses_parser.parse_compaction,
                parse_messages_request,
            )
        )

    async def open(self) -> None:
        """Connects to the store, reads what earlier processes stored there, and starts the background work.

        Raises:
            StoreUnavailable: the store cannot be reached, or its schema is another version's.
        """
        # First: everything below uses the store.
        await self.store.open()
        await self.authenticator.initialize()
        # After those of the settings. It opens what was sealed before they named a key.
        key = await self.store.ensure_server_secret(CAPSULE_KEY, proposed=secrets.token_hex(KEY_BYTES))
        self.capsule_sealer.add_key(bytes.fromhex(key))
        self.leases.start()
        model_facts = await self.store.read_model_facts()
        if not is_count_complete(model_facts):
            # One process counts; the others wait for it and find nothing left to count.
            async with self.leases.hold_lease(COUNT_FACT, COUNT_FACT, COUNT_WAIT_SECONDS):
                await count_existing_answers(self.store, self.store)
        self.retention.start()
        self.usage.start()
        if self.requests is not None:
            self.requests.start()
        self.key_budgets.start()
        if self.metrics.is_on:
            self.overview.start()
        # Only started here: the server does not wait for a provider that is slow or away.
        self.context_windows.prefetch_model_lists(tuple(self.providers.values()))
        self.learned_limits.restore(model_facts)
        for model_key, facts in model_facts.items():
            self.calibration_slopes.restore_slopes(model_key, facts.get(SLOPES_FACT))

    async def aclose(self) -> None:
        """Finishes or cancels the running work, then closes each part before the parts that it uses."""
        await self.overview.aclose()
        await self.retention.aclose()
        # Before the background tasks: precompactions are among them, and the wait below is meant for writes, not for
        # calls of a model.
        await self.precompactor.aclose()
        await self.tasks.aclose(SHUTDOWN_TIMEOUT_SECONDS)
        # After the background tasks: a turn that is written may leave fingerprints.
        await self.unwritten_fingerprints.aclose()
        await self.compactor.aclose()
        await self.context_windows.aclose()
        # After the last model call.
        await self.key_budgets.aclose()
        await self.usage.aclose()
        if self.requests is not None:
            await self.requests.aclose()
        # After all writes, which are fenced by leases, and before the store, which releases the leases.
        await self.leases.aclose()
        for provider in self.providers.values():
            await provider.aclose()
        await self.store.close()
        await self.tracing.aclose()

    @asynccontextmanager
    async def run_lifespan(self, _: object) -> AsyncIterator[None]:
        """Opens the gateway before the server serves; at the end finishes running work and closes the gateway."""
        # On the thread that counts later: toktok-rs keeps a cache of 17 MB for each thread. And before `open`: a table
        # takes a third of a second to load, and an open gateway renews leases.
        warm_up_tokenizers(self.settings)
        await self.open()
        # The objects of the start stay until the process ends: the garbage collector need not examine them. Garbage is
        # collected before, or it would be kept as well.
        self.dependencies.collect_garbage()
        self.dependencies.freeze_garbage()
        try:
            yield
        finally:
            await self.aclose()

    def list_dead_loops(self) -> list[str]:
        """Returns the names of the background loops that have ended although the process runs."""
        loops = (
            self.leases.renewals,
            self.retention.sweeps,
            self.usage.writes,
            self.overview.sampling,
            self.key_budgets.renewals,
            *([self.requests.writes] if self.requests is not None else []),
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
    # Also without a key: the store then makes sure that ciphertext is never taken for text.
    return encrypt_store(
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
        requests=store,
        leases=leases,
        days=settings.retention.days,
        context_hours=settings.retention.context_hours,
        request_hours=settings.retention.request_hours,
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


def random_bytes(count: int) -> bytes:
    """Returns random bytes for ids. They can be predicted, so they must not be used for secrets."""
    return _id_generator.randbytes(count)


def new_request_id() -> str:
    return f"req_{random_bytes(16).hex()}"
