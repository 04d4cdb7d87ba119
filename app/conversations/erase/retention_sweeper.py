"""Erases conversations that got no message for longer than their retention, with their summaries.

A conversation in use is skipped until the next sweep. Messages that a younger branch shares with an erased conversation
pass to the branch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.conversation.api_keys import list_enclosing_tenants
from app.conversation.conversation_types import Conversation
from app.conversations.history.conversation_records import stream_conversation_pages
from app.errors import ConversationBusy
from app.observability.background_loops import BackgroundLoop
from app.observability.metrics import NO_METRICS, Metrics
from app.store.contract.conversations import ConversationQuery
from app.store.contract.keys import KeyStore
from app.store.contract.requests import RequestStore
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.leases import RETENTION_LEASE, LeaseKeeper

log = logging.getLogger(__name__)

SWEEP_LEASE: Final = RETENTION_LEASE
BATCH_SIZE: Final = 100
BATCH_PAUSE_SECONDS: Final = 0.05
"""A pause after each batch, so that requests are not slowed down."""
ORPHAN_SUMMARY_GRACE: Final = timedelta(hours=1)
"""The age from which a summary without stored messages belongs to no running request and to none that is retried."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The counts of one sweep."""

    erased_conversations: int = 0
    skipped_in_use: int = 0
    """Expired conversations that were in use and are left for the next sweep."""
    purged_idempotency_keys: int = 0
    purged_summaries: int = 0
    """Summaries made for requests that failed before their messages were stored."""


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Selects expired conversations: those of `tenant` (None: of all tenants) without a new message since
    `untouched_since`, except those of `excluded_tenants`. A tenant stands for what is derived from it, too, such as its
    end users. With `is_context_only`, only those that are kept for continuing."""

    untouched_since: datetime
    tenant: str | None = None
    excluded_tenants: Collection[str] = ()
    is_context_only: bool = False

    def excludes(self, tenant: str) -> bool:
        return any(enclosing in self.excluded_tenants for enclosing in list_enclosing_tenants(tenant))


@dataclass(eq=False, kw_only=True)
class RetentionSweeper:
    """Erases expired conversations, periodically or on request."""

    store: ConversationAndSummaryStore
    keys: KeyStore
    requests: RequestStore
    leases: LeaseKeeper
    days: int | None
    """The retention of tenants whose keys have none; None: no limit."""
    context_hours: float
    """The retention of conversations that are kept for continuing only."""
    request_hours: float
    """The retention of requests."""
    sweep_seconds: float
    """The time between two sweeps, plus or minus a tenth."""
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float]
    """Uniform in [0, 1)."""
    metrics: Metrics = NO_METRICS

    def __post_init__(self) -> None:
        self.sweeps = BackgroundLoop(
            "retention", self._sweep_periodically, self._choose_pause, metrics=self.metrics, sleep=self.sleep
        )

    def start(self) -> None:
        """Starts the periodic sweeps."""
        # Even the first pause is random, because processes are often started together.
        self.sweeps.start(self.sweep_seconds * 0.1 * self.random())

    async def aclose(self) -> None:
        await self.sweeps.aclose()

    async def _sweep_periodically(self) -> None:
        # Another process sweeps already: the next sweep makes up for it.
        with contextlib.suppress(ConversationBusy):
            await self.sweep()

    def _choose_pause(self) -> float:
        return self.sweep_seconds * (0.9 + 0.2 * self.random())

    async def sweep(self) -> SweepResult:
        """Erases expired conversations and requests, orphaned summaries and expired idempotency keys.

        Raises:
            ConversationBusy: another process is sweeping.
        """
        async with self.leases.hold_lease(*SWEEP_LEASE, 0) as lease:
            erased = in_use = 0
            for rule in await self.read_retention_rules():
                async for conversation in self.stream_expired_conversations(rule):
                    if not self.leases.is_held(lease):
                        break  # another process may have begun a sweep by now
                    if await self.erase_unless_in_use(conversation, rule.untouched_since):
                        erased += 1
                    else:
                        in_use += 1
            await self.purge_requests()
            swept = SweepResult(
                erased, in_use, await self.keys.purge_idempotency_keys(), await self.purge_stray_summaries()
            )
        if erased or in_use:
            log.info("erased %d old conversations; skipped %d that are in use", erased, in_use)
        if swept.purged_summaries:
            log.info("erased %d summaries whose requests had failed", swept.purged_summaries)
        return swept

    async def purge_stray_summaries(self) -> int:
        """Erases summaries of requests whose messages were never stored, for instance because the process died; returns
        their number. Such summaries belong to no conversation, so no other rule finds them."""
        return await self.store.purge_stray_summaries(created_before=self.clock() - ORPHAN_SUMMARY_GRACE)

    async def purge_requests(self) -> int:
        """Erases requests that are older than their retention; returns their number."""
        return await self.requests.purge_requests(before=self.clock().timestamp() - self.request_hours * 3600)

    async def read_retention_rules(self) -> list[RetentionRule]:
        """Returns the current rules: for each tenant the shortest retention of its valid keys, the general one for all
        other tenants, and the one for what is kept for continuing only."""
        now = self.clock()
        days: dict[str, int] = {}
        for key in await self.keys.list_api_keys():
            if key.retention_days is not None and key.is_valid_at(now):
                days[key.tenant] = min(key.retention_days, days.get(key.tenant, key.retention_days))
        rules = [RetentionRule(now - timedelta(days=count), tenant) for tenant, count in days.items()]
        if self.days is not None:
            rules.append(RetentionRule(now - timedelta(days=self.days), excluded_tenants=days.keys()))
        rules.append(RetentionRule(now - timedelta(hours=self.context_hours), is_context_only=True))
        return rules

    async def stream_expired_conversations(self, rule: RetentionRule) -> AsyncIterator[Conversation]:
        """Yields the conversations that a rule selects, oldest first."""
        query = ConversationQuery(
            limit=BATCH_SIZE,
            descending=False,
            updated_before=rule.untouched_since,
            is_context_only=rule.is_context_only,
            with_derived_tenants=True,
        )
        async for page in stream_conversation_pages(self.store, rule.tenant, query):
            for conversation in page:
                if not rule.excludes(conversation.tenant):
                    yield conversation
            if len(page) == BATCH_SIZE:
                await self.sleep(BATCH_PAUSE_SECONDS)

    async def erase_unless_in_use(self, conversation: Conversation, untouched_since: datetime) -> bool:
        """Erases a conversation, unless it is in use or got a new message meanwhile. Returns whether it is erased."""
        tenant, conversation_id = conversation.tenant, conversation.id
        try:
            async with self.leases.hold_lease(conversation.root, conversation_id, 0):
                current = await self.store.find_conversation(tenant=tenant, conversation_id=conversation_id)
                if current is not None and (current.updated_at is None or current.updated_at >= untouched_since):
                    return False
                await self.store.erase_conversation(tenant=tenant, conversation_id=conversation_id)
        except ConversationBusy:
            return False
        return True
