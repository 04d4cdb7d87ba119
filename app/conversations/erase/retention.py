"""How long conversations are kept: those that have rested for too long are erased, branches and summaries included.

A conversation rests from its last message on. One that is in use is left for the next time; what branches that still
live share with an old one passes to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.conversation.api_keys import application_of
from app.conversation.messages import Conversation
from app.errors import ConversationBusy, StoreUnavailable
from app.store.contract import ListQuery, Store
from app.store.leases import SWEEP, LeaseKeeper

log = logging.getLogger(__name__)

LEASE: Final = SWEEP
BATCH: Final = 100
PAUSE_SECONDS: Final = 0.05
"""After each batch, so that requests come first."""
GRACE: Final = timedelta(hours=1)
"""A summary this old belongs to no request under way, and to none that will be tried again."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    erased: int = 0
    in_use: int = 0
    """Were old enough and are left for the next time."""
    request_keys: int = 0
    summaries: int = 0
    """Were made for requests that failed before anything of them was stored."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which conversations are old: those of `tenant` (None: of everybody but `others`) untouched since `before`."""

    before: datetime
    tenant: str | None = None
    others: Collection[str] = ()

    def means(self, tenant: str) -> bool:
        return self.tenant in (None, tenant) and tenant not in self.others


class Retention:
    """Erases what is old, every now and then or at once."""

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        days: int | None,
        end_users: bool = False,
        sweep_seconds: float,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float],
    ) -> None:
        """
        Args:
            days: how long a conversation may rest where no key of its tenant says otherwise; None: for ever.
            end_users: whether end users have tenants of their own: everybody's are looked through then.
            sweep_seconds: between two sweeps, give or take a tenth.
            random: uniform in [0, 1).
        """
        self._store = store
        self._leases = leases
        self._days = days
        self._end_users = end_users
        self._sweep_seconds = sweep_seconds
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin sweeping."""
        self._task = asyncio.create_task(self._run())  # noqa: TID251 - ended by aclose

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        """The first pause differs from process to process too: they are often started together."""
        await self._sleep(self._sweep_seconds * 0.1 * self._random())
        while True:
            # While another process sweeps, or the store is away, there is nothing to do.
            with contextlib.suppress(ConversationBusy, StoreUnavailable):
                await self.sweep()
            await self._sleep(self._sweep_seconds * (0.9 + 0.2 * self._random()))

    async def sweep(self) -> Swept:
        """Erase what is old by the rules and summaries that belong to nothing, and forget idempotency keys whose time
        is over.

        Raises:
            ConversationBusy: another process is at it.
        """
        async with self._leases.hold(*LEASE, 0) as lease:
            erased = in_use = 0
            for rule in await self.rules():
                async for conversation in self.old(rule):
                    if not self._leases.is_held(lease):
                        break
                    if await self.erase(conversation, rule.before):
                        erased += 1
                    else:
                        in_use += 1
            swept = Swept(erased, in_use, await self._store.purge_requests(), await self.purge_summaries())
        if erased or in_use:
            log.info("%d old conversations erased, %d in use and left", erased, in_use)
        if swept.summaries:
            log.info("%d summaries erased whose requests had failed", swept.summaries)
        return swept

    async def purge_summaries(self) -> int:
        """Erase summaries that were made for a request of which nothing was stored then, as when its process died; how
        many. No rule and no erasure of a conversation would come upon them."""
        return await self._store.purge_chunks(made_before=self._clock() - GRACE)

    async def rules(self) -> list[Rule]:
        """The rules that hold now: of each tenant's valid keys the shortest, and the general one for the others."""
        now = self._clock()
        days: dict[str, int] = {}
        for key in await self._store.keys():
            if key.retention_days is not None and key.is_valid_at(now):
                days[key.tenant] = min(key.retention_days, days.get(key.tenant, key.retention_days))
        rules = [Rule(now - timedelta(days=count), tenant) for tenant, count in days.items()]
        if self._days is not None:
            rules.append(Rule(now - timedelta(days=self._days), others=days.keys()))
        return rules

    async def old(self, rule: Rule) -> AsyncIterator[Conversation]:
        """The conversations that a rule means, oldest first."""
        after: tuple[datetime, str] | None = None
        while True:
            query = ListQuery(limit=BATCH, descending=False, after=after, updated_before=rule.before)
            page = await self._store.conversations(tenant=None if self._end_users else rule.tenant, query=query)
            for conversation in page:
                if rule.means(application_of(conversation.tenant)):
                    yield conversation
            if len(page) < BATCH:
                return
            last = page[-1]
            assert last.created_at is not None
            after = (last.created_at, last.id)
            await self._sleep(PAUSE_SECONDS)

    async def erase(self, conversation: Conversation, before: datetime) -> bool:
        """Erase a conversation unless it is in use, or was meanwhile. Whether it is gone."""
        tenant, conversation_id = conversation.tenant, conversation.id
        try:
            async with self._leases.hold(conversation.root, conversation_id, 0):
                now = await self._store.get(tenant=tenant, conversation_id=conversation_id)
                if now is not None and (now.updated_at is None or now.updated_at >= before):
                    return False
                await self._store.delete(tenant=tenant, conversation_id=conversation_id)
        except ConversationBusy:
            return False
        return True
