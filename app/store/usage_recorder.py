"""Adds up the tokens and costs of model calls in memory, and writes the sums to the store every few seconds.

A request waits for no write. A process that is killed loses what it has counted since its last write, at most
`FLUSH_SECONDS`; a stop writes everything. While the store is unavailable, sums stay in memory and are written later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from app.conversation.api_keys import extract_application_tenant
from app.dialects.usage import TokenUsage
from app.errors import StoreUnavailable
from app.observability.background_loops import BackgroundLoop
from app.observability.metric_families import UNWRITTEN_USAGE
from app.observability.metrics import NO_METRICS, Metrics
from app.store.contract.usage import MAX_USAGE_BATCH, UsageQuery, UsageStore, UsageTotals

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 5.0
KEPT_DAYS: Final = 400
"""How long sums are kept: a month can be compared with the same month of the year before."""
MAX_UNWRITTEN_SUMS: Final = 100_000
"""How many sums wait for the store while it is unavailable. Further ones are lost: in mode `open`, clients choose their
tenants."""

_SumKey = tuple[str, str, str, str]


class UsageRecorder:
    """Counts the usage of one process.

    Args:
        now: the time of day, in UTC.
    """

    def __init__(
        self,
        store: UsageStore,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        flush_seconds: float = FLUSH_SECONDS,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._store = store
        self._now = now
        self._lost_sums = metrics.counter_series(UNWRITTEN_USAGE)
        self.writes = BackgroundLoop(
            "usage", self._flush_and_purge, lambda: flush_seconds, metrics=metrics, sleep=sleep
        )
        self._unwritten: dict[_SumKey, _Sum] = {}
        """By tenant, key, day and model."""
        self._lock = asyncio.Lock()
        """Held while sums are written."""
        self._purged_on = ""

    def start(self) -> None:
        """Starts the periodic writes."""
        self.writes.start()

    async def aclose(self) -> None:
        """Stops the periodic writes, and writes what is left."""
        # With the lock, the loop is not writing. A cancelled write may still take effect, and would be repeated.
        async with self._lock:
            await self.writes.aclose()
        try:
            await self.flush()
        except StoreUnavailable as error:
            log.warning("could not write the usage of the last seconds: %s", error.message)

    def record_call(
        self,
        tenant: str,
        key_id: str | None,
        model: str,
        usage: TokenUsage | None,
        cost_usd: float | None,
        *,
        is_answer: bool = True,
    ) -> None:
        """Counts a model call.

        Args:
            tenant: of the caller; an end user's counts for the application.
            key_id: the API key of the caller.
            model: the provider's name of the model.
            usage: None: nothing is known of the call's tokens.
            cost_usd: None: not known.
            is_answer: False for a summary call.
        """
        day = self._now().date().isoformat()
        sum_key = (extract_application_tenant(tenant), key_id or "", day, model)
        total = self._unwritten.get(sum_key)
        if total is None:
            if len(self._unwritten) >= MAX_UNWRITTEN_SUMS:
                self._lost_sums.inc()
                return
            total = self._unwritten[sum_key] = _Sum()
        total.requests += is_answer
        if usage is not None:
            total.prompt_tokens += usage.prompt_tokens
            total.cached_tokens += usage.cached_tokens
            total.completion_tokens += usage.output_tokens
        if cost_usd is None:
            total.unpriced_calls += 1
        else:
            total.cost_usd += cost_usd

    async def sum_usage(self, query: UsageQuery) -> list[UsageTotals]:
        """As `UsageStore.sum_usage`, with what this process has not written yet."""
        await self.flush()
        return await self._store.sum_usage(query)

    async def flush(self) -> None:
        """Writes the sums.

        Raises:
            StoreUnavailable: the sums that are not written yet stay in memory.
        """
        async with self._lock:
            while self._unwritten:
                batch = {key: self._unwritten.pop(key) for key in list(self._unwritten)[:MAX_USAGE_BATCH]}
                try:
                    await self._write_batch(batch)
                finally:
                    # What is left was not written, since the store is unavailable.
                    for key, total in batch.items():
                        total.add(self._unwritten.pop(key, None))
                        self._unwritten[key] = total

    async def _write_batch(self, batch: dict[_SumKey, _Sum]) -> None:
        """Writes sums, and removes those that are done with from `batch`. If the database refuses one of them, each is
        written by itself, and the one that is refused again is set aside.

        Raises:
            StoreUnavailable: the sums that are left were not written.
        """
        try:
            await self._store.add_usage(_build_totals(batch))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(batch) == 1:
                self._lost_sums.inc()
                log.error("a sum of usage cannot be stored and is not counted", exc_info=error)
                batch.clear()
                return
            for key in list(batch):
                one = {key: batch.pop(key)}
                try:
                    await self._write_batch(one)
                finally:
                    batch |= one
        else:
            batch.clear()

    async def _flush_and_purge(self) -> None:
        """Writes the sums, and once a day deletes old ones."""
        await self.flush()
        today = self._now().date()
        if self._purged_on != today.isoformat():
            await self._store.purge_usage(before_day=(today - timedelta(days=KEPT_DAYS)).isoformat())
            self._purged_on = today.isoformat()


def _build_totals(sums: Mapping[_SumKey, _Sum]) -> list[UsageTotals]:
    return [UsageTotals(*key, *msgspec.structs.astuple(total)) for key, total in sums.items()]


class _Sum(msgspec.Struct):
    """The numbers of `UsageTotals`, in its order."""

    requests: int = 0
    unpriced_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, other: _Sum | None) -> None:
        if other is not None:
            self.requests += other.requests
            self.unpriced_calls += other.unpriced_calls
            self.prompt_tokens += other.prompt_tokens
            self.cached_tokens += other.cached_tokens
            self.completion_tokens += other.completion_tokens
            self.cost_usd += other.cost_usd
