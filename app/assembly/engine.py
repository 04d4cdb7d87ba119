"""What one process is made of: every part built once, and given to whoever needs it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.api.edge.auth import Auth, AuthRules
from app.assembly.models import policy_of, providers_of, router_of, routes_of, windows_of
from app.assembly.telemetry import metrics_of, overview_of, tracing_of
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summarizer import Summarizer
from app.context.count.token_counter import counter_for
from app.conversation.identity import PrefixMemory
from app.conversations.erase.retention import Retention
from app.observability.metric_families import TASKS
from app.observability.metrics import SILENT, Metrics
from app.observability.overview import Overview
from app.observability.tracing import Tracing
from app.pipeline.admission.admission import Admission, Bounds
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.idempotency_keys import RequestKeys
from app.pipeline.admission.request_coalescing import Retries
from app.pipeline.background_tasks import Tasks
from app.pipeline.call.search_tool_loop import Recalling
from app.pipeline.call.upstream_call import Ask
from app.pipeline.compact.precompaction import Preparing
from app.pipeline.compact.turn_compaction import Compacting
from app.pipeline.persist.stored_completion import Storing
from app.pipeline.persist.turn_writer import Remember
from app.pipeline.pipeline import Clocks, Exchange
from app.pipeline.resolve.answer_anchors import Anchors
from app.pipeline.resolve.client_history import ClientHistories
from app.pipeline.resolve.conversation_resolver import Recall
from app.pipeline.resolve.model_context import SLOPES, Slopes, Turns
from app.pipeline.resolve.resent_history import Remembered
from app.pipeline.respond.response import Delivery
from app.pipeline.token_counting import Counting
from app.pipeline.view.pins import Pinning
from app.pipeline.view.quotations import Finding, Quoting
from app.pipeline.view.view_builder import Views
from app.settings import Settings
from app.store.connect import open_store
from app.store.contract import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.measured_store import measured
from app.upstream.provider import Provider
from app.upstream.routing.router import Router
from app.upstream.routing.windows import Windows

LAST_WRITES_SECONDS: Final = 5.0
"""After the drain, which the server has waited for already: what is left are writes."""
_ids: Final = random.Random(secrets.randbits(256))  # noqa: S311 - see below
"""For ids, which must not collide but may be guessed: a tenant's are of no use to another."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts that endpoints are made from."""

    store: Store
    leases: LeaseKeeper
    tasks: Tasks
    counting: Counting
    providers: Mapping[str, Provider]
    router: Router
    windows: Windows
    slopes: Slopes
    views: Views
    finding: Finding
    pinning: Pinning
    turns: Turns
    anchors: Anchors
    compactor: Compactor
    compacting: Compacting
    preparing: Preparing
    retention: Retention
    exchange: Exchange
    admission: Admission
    retries: Retries
    auth: Auth
    tracing: Tracing
    metrics: Metrics
    overview: Overview

    async def open(self) -> None:
        """Connect, and begin what runs in the background."""
        await self.store.open()
        await self.auth.open()
        self.leases.start()
        self.retention.start()
        if self.metrics.is_on:
            self.overview.start()
        self.windows.prefetch(tuple(self.providers.values()))
        for model_key, facts in (await self.store.model_facts()).items():
            if "window" in facts:
                self.windows.learned(model_key, int(facts["window"]))
            self.slopes.restore(model_key, facts.get(SLOPES))

    async def aclose(self) -> None:
        """Finish what runs, then close everything in reverse."""
        await self.overview.aclose()
        await self.retention.aclose()
        await self.preparing.aclose()
        await self.tasks.aclose(LAST_WRITES_SECONDS)
        await self.anchors.aclose()
        await self.compactor.aclose()
        await self.windows.aclose()
        await self.leases.aclose()
        for provider in self.providers.values():
            await provider.aclose()
        await self.store.close()
        await self.tracing.aclose()
        self.metrics.close()


def engine_of(settings: Settings, metrics_folder: Path | None = None) -> Engine:
    """Everything for one process, not yet connected to anything.

    Args:
        metrics_folder: where the processes that serve together count; None: this one serves alone.
    """
    metrics = metrics_of(settings, metrics_folder)
    store, tasks, counting = store_of(settings, metrics), Tasks(), Counting(counter_for)
    metrics.watch(TASKS, lambda: tasks.running)
    leases = LeaseKeeper(
        store, holder=uuid.uuid4().hex, lease_seconds=settings.compaction.lease_seconds, metrics=metrics
    )
    providers, routes, windows = providers_of(settings), routes_of(settings), windows_of(settings)
    router, summary_router = (
        router_of(settings, routes, providers, metrics, purpose) for purpose in ("answer", "summary")
    )
    views, finding = Views(store=store, counting=counting), Finding(store)
    pinning = Pinning(store=store, counting=counting)
    slopes = Slopes()
    compactor = Compactor(
        store=store,
        leases=leases,
        summarizer=Summarizer(router=summary_router, windows=windows, counter_for=counter_for, metrics=metrics),
        counter_for=counter_for,
        metrics=metrics,
    )
    prefixes: PrefixMemory[Remembered] = PrefixMemory()
    anchors = Anchors(store, tasks)
    histories = ClientHistories(store, counting)
    answers = StoredAnswers(store, now=utc_now)
    recall = Recall(
        store=store,
        answers=answers,
        leases=leases,
        counting=counting,
        prefixes=prefixes,
        histories=histories,
        anchors=anchors,
        random_bytes=random_bytes,
        wait_seconds=settings.compaction.wait_seconds,
        serves_degraded=settings.degraded_mode == "serve",
    )
    compacting = Compacting(
        views=views, compactor=compactor, recall=recall, tasks=tasks, wait_seconds=settings.compaction.wait_seconds
    )
    preparing = Preparing(views=views, compacting=compacting, compactor=compactor, finding=finding, tasks=tasks)
    ask = Ask(router=router, windows=windows, views=views, store=store, tasks=tasks, slopes=slopes)
    recalling = Recalling(ask=ask, views=views, finding=finding, counting=counting)
    remember = Remember(
        store=store,
        leases=leases,
        counting=counting,
        prefixes=prefixes,
        histories=histories,
        anchors=anchors,
        random_bytes=random_bytes,
        tasks=tasks,
    )
    turns = Turns(
        router=router,
        windows=windows,
        policies={name: policy_of(settings, name) for name in settings.policies},
        default_policy=settings.policy_of_every_model,
        model_policies={name: model.policy for name, model in settings.models.items() if model.policy},
        slopes=slopes,
        counting=counting,
    )
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
            storing=Storing(store, now=utc_now),
            tasks=tasks,
            metrics=metrics,
        ),
        recalling=recalling,
        quoting=Quoting(views=views, finding=finding, counting=counting, tasks=tasks),
        pinning=pinning,
        turns=turns,
        tasks=tasks,
        clocks=Clocks(unix_seconds=time.time, new_completion_id=_new_completion_id),
    )
    admission = Admission(bounds_of(settings), clock=time.monotonic, metrics=metrics)
    return Engine(
        store=store,
        leases=leases,
        tasks=tasks,
        counting=counting,
        providers=providers,
        router=router,
        windows=windows,
        slopes=slopes,
        views=views,
        finding=finding,
        pinning=pinning,
        turns=turns,
        anchors=anchors,
        compactor=compactor,
        compacting=compacting,
        preparing=preparing,
        retention=retention_of(settings, store, leases),
        exchange=exchange,
        admission=admission,
        retries=_retries_of(settings, store, answers, exchange, tasks, admission),
        auth=_auth_of(settings, store),
        tracing=tracing_of(settings),
        metrics=metrics,
        overview=overview_of(settings, metrics),
    )


def store_of(settings: Settings, metrics: Metrics = SILENT) -> Store:
    """The configured store, not yet connected; what is said in it is encrypted while a key is active."""
    store = open_store(
        settings.database.url.get_secret_value(),
        synchronous=settings.database.synchronous,
        timeout_seconds=settings.database.timeout_seconds,
        pool_size=settings.database.pool_size,
        statement_cache_size=settings.database.statement_cache_size,
    )
    return EncryptedStore(measured(store, metrics), Cipher(settings.encryption.key_bytes, settings.encryption.active))


def retention_of(settings: Settings, store: Store, leases: LeaseKeeper) -> Retention:
    """What sweeps old conversations, by the configured rules."""
    return Retention(
        store=store,
        leases=leases,
        days=settings.retention.days,
        end_users=settings.auth.end_users,
        sweep_seconds=settings.retention.sweep_seconds,
        clock=utc_now,
        random=random.random,
    )


def bounds_of(settings: Settings) -> Bounds:
    """How many requests that ask a model this process takes on."""
    section = settings.limits
    return Bounds(
        places=section.max_concurrent_requests,
        places_per_tenant=section.max_concurrent_per_tenant,
        waiting=section.max_waiting,
        wait_seconds=section.max_wait_seconds,
    )


def _retries_of(
    settings: Settings, store: Store, answers: StoredAnswers, exchange: Exchange, tasks: Tasks, admission: Admission
) -> Retries:
    keys = RequestKeys(
        store=store,
        tasks=tasks,
        new_holder=lambda: random_bytes(16).hex(),
        wait_seconds=settings.compaction.wait_seconds,
        clock=time.monotonic,
        sleep=asyncio.sleep,
        random=random.random,
    )
    return Retries(
        exchange=exchange,
        answers=answers,
        keys=keys,
        tasks=tasks,
        clock=time.monotonic,
        now=utc_now,
        admission=admission,
    )


def _auth_of(settings: Settings, store: Store) -> Auth:
    section = settings.auth
    rules = AuthRules(
        mode=section.mode,
        pepper=section.pepper.get_secret_value() if section.pepper else None,
        cache_seconds=section.cache_seconds,
        end_user_header=section.end_user_header.lower() if section.end_users else None,
        allowed_hosts=section.allowed_hosts,
    )
    return Auth(store, rules, now=utc_now, seconds=time.monotonic, random_bytes=secrets.token_bytes)


def utc_now() -> datetime:
    return datetime.now(UTC)


def random_bytes(count: int) -> bytes:
    """For ids."""
    return _ids.randbytes(count)


def _new_completion_id() -> str:
    return f"chatcmpl-{random_bytes(14).hex()}"
