"""Limits how many requests run in this process at once, in total and for each tenant. Further requests wait in a
bounded fair queue, in which tenants take turns (docs/decisions/0026).

The limits hold for one process; each process has its own. Summarizer calls are not requests of a client and have limits
of their own, in `app.pipeline.compact.precompaction` and `app.compaction`.

`CallLimits` lets calls of models in within the budgets and rates of their callers. What a request has used of them is
settled when it is over.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.conversation.api_keys import extract_application_tenant
from app.errors import GatewayError, Overloaded, RateLimitExceeded, RequestAbandoned
from app.observability.metric_families import ADMISSION_WAIT_SECONDS, REFUSALS, REQUESTS_ADMITTED, REQUESTS_WAITING
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_record import timed_step
from app.pipeline.turn.chat_request import Caller
from app.store.call_allowance import CallAllowance
from app.store.contract.limits import RateLimit
from app.store.key_budgets import KeyBudgets
from app.store.rate_limits import RateLimits

DISCONNECT_POLL_SECONDS: Final = 0.25
RETRY_AFTER_BOUNDS_SECONDS: Final = (1, 60)
"""The least and the most seconds of a `Retry-After` header. Some SDKs do not retry at all if it is more than 60."""


@dataclass(eq=False)
class Admission:
    """The slots of one process.

    Args:
        clock: returns monotonic seconds.
        disconnect_poll_seconds: how often a waiting request checks whether its client is still connected.
    """

    bounds: AdmissionBounds
    clock: Callable[[], float]
    metrics: Metrics = NO_METRICS
    disconnect_poll_seconds: float = DISCONNECT_POLL_SECONDS

    def __post_init__(self) -> None:
        self.queue = queue = FairQueue(self.bounds)
        self._last_wait_seconds = 0.0
        self.metrics.watch_gauge(REQUESTS_ADMITTED, lambda: queue.running_count)
        self.metrics.watch_gauge(REQUESTS_WAITING, lambda: queue.waiting_count)

    async def acquire_slot(self, tenant: str, is_disconnected: Callable[[], bool]) -> None:
        """Takes a slot, or waits for one.

        Raises:
            GatewayError: as `wait_for_slot`.
        """
        if not self.queue.try_acquire_slot(tenant):
            await self.wait_for_slot(tenant, is_disconnected)

    @timed_step("queue")
    async def wait_for_slot(self, tenant: str, is_disconnected: Callable[[], bool]) -> None:
        """Waits for a slot. To be called after `try_acquire_slot` returned False.

        Args:
            is_disconnected: returns whether nobody waits for the answer any more.

        Raises:
            RateLimitExceeded: the queue is full or the wait was too long, and the tenant has reached its own limit.
            Overloaded: the queue is full or the wait was too long, and the gateway has reached its limit.
            RequestAbandoned: the client has disconnected.
        """
        started_waiting_at = self.clock()
        queued_request = QueuedRequest(tenant, started_waiting_at, asyncio.get_running_loop().create_future())
        evicted = self.queue.enqueue(queued_request)
        if evicted is queued_request:
            raise self._make_refusal(tenant, "full")
        if evicted is not None:
            evicted.admission_future.set_exception(self._make_refusal(evicted.tenant, "full"))
        try:
            await self._wait_until_admitted(queued_request, is_disconnected)
        except BaseException:
            # The request may have been given a slot in the moment in which its wait was cancelled or timed out. Then
            # the slot must be given back, or it is lost for ever.
            if (
                not self.queue.remove(queued_request)
                and queued_request.admission_future.done()
                and queued_request.admission_future.exception() is None
            ):
                self.release_slot(tenant)
            raise
        self._last_wait_seconds = self.clock() - started_waiting_at
        self.metrics.histogram_series(ADMISSION_WAIT_SECONDS).observe(self._last_wait_seconds)

    def release_slot(self, tenant: str) -> None:
        """Gives a slot back, and admits the next request in the queue. To be called when the answer is over, however it
        ended."""
        admitted = self.queue.release_slot(tenant)
        if admitted is not None:
            admitted.admission_future.set_result(None)

    @asynccontextmanager
    async def hold_slot(self, tenant: str, is_disconnected: Callable[[], bool]) -> AsyncIterator[None]:
        """Holds a slot while the context is open.

        Raises:
            GatewayError: as `wait_for_slot`.
        """
        await self.acquire_slot(tenant, is_disconnected)
        try:
            yield
        finally:
            self.release_slot(tenant)

    async def _wait_until_admitted(self, queued_request: QueuedRequest, is_disconnected: Callable[[], bool]) -> None:
        while not queued_request.admission_future.done():
            remaining_seconds = queued_request.queued_at + self.bounds.max_wait_seconds - self.clock()
            if remaining_seconds <= 0:
                raise self._make_refusal(queued_request.tenant, "wait")
            await asyncio.wait(
                {queued_request.admission_future}, timeout=min(self.disconnect_poll_seconds, remaining_seconds)
            )
            # Nothing wakes this task when the client of a whole answer leaves (docs/decisions/0020), so the connection
            # is polled.
            if is_disconnected():
                raise RequestAbandoned("The client disconnected before the gateway had a free slot for its request.")
        queued_request.admission_future.result()

    def _make_refusal(self, tenant: str, reason: str) -> GatewayError:
        """Builds the error for a request that gets no slot. Status 429 means that the tenant's own requests are in its
        way, status 503 that the gateway is full."""
        is_tenant_full = self.queue.is_tenant_full(tenant)
        self.metrics.counter_series(REFUSALS, f"tenant_{reason}" if is_tenant_full else reason).inc()
        max_wait_seconds = self.bounds.max_wait_seconds
        explanation = (
            f"no slot became free within {max_wait_seconds:g} seconds" if reason == "wait" else "the queue is full"
        )
        retry_after_seconds = self._compute_retry_after_seconds(tenant)
        if is_tenant_full:
            max_running = self.bounds.max_running_per_tenant
            return RateLimitExceeded(
                f"This caller has {max_running} requests running, which is its limit, and {explanation}.",
                hint="Send fewer at once, or raise `limits.max_concurrent_per_tenant`.",
                retry_after_seconds=retry_after_seconds,
            )
        return Overloaded(
            f"The gateway has {self.bounds.max_running} requests running, which is its limit, and {explanation}.",
            hint="Try again, or raise `limits.max_concurrent_requests`.",
            retry_after_seconds=retry_after_seconds,
        )

    def _compute_retry_after_seconds(self, tenant: str) -> int:
        """Returns how long others wait at present: the longer of the wait of the tenant's oldest queued request and the
        wait of the request that was admitted last."""
        oldest = self.queue.find_oldest(tenant)
        waited_seconds = self.clock() - oldest.queued_at if oldest is not None else 0.0
        minimum, maximum = RETRY_AFTER_BOUNDS_SECONDS
        return min(maximum, max(minimum, math.ceil(max(waited_seconds, self._last_wait_seconds))))


UNBOUNDED: Final = sys.maxsize


class AdmissionBounds(msgspec.Struct, frozen=True):
    """How many requests may run at once and how many may wait. 0 for `max_running` or `max_running_per_tenant` means no
    limit."""

    max_running: int = 0
    max_running_per_tenant: int = 0
    max_waiting: int = 0
    """For all tenants together; 0: no request waits."""
    max_wait_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """One request in the queue."""

    tenant: str
    queued_at: float
    """When the request joined the queue, in monotonic seconds."""
    admission_future: Any
    """Ends when the request is admitted or refused. The queue itself does not use it."""
    is_waiting: bool = True


_TenantQueue = OrderedDict[QueuedRequest, None]


class FairQueue:
    """Counts the slots in use, and queues requests so that tenants take turns.

    Attributes:
        running_count: requests that have a slot.
        waiting_count: requests that wait for a slot.
    """

    def __init__(self, bounds: AdmissionBounds) -> None:
        self._max_running = bounds.max_running or UNBOUNDED
        self._max_running_per_tenant = bounds.max_running_per_tenant or UNBOUNDED
        self._max_waiting = bounds.max_waiting
        self._running_by_tenant: dict[str, int] = {}
        self._ready_tenants: OrderedDict[str, _TenantQueue] = OrderedDict()
        """Tenants that wait for any slot to become free, in the order of their turns."""
        self._blocked_tenants: OrderedDict[str, _TenantQueue] = OrderedDict()
        """Tenants at their own limit. They wait until one of their own requests is over."""
        self.running_count = 0
        self.waiting_count = 0

    def try_acquire_slot(self, tenant: str) -> bool:
        """Takes a slot if one is free, and returns whether it did."""
        running = self._running_by_tenant.get(tenant, 0)
        if self.running_count >= self._max_running or running >= self._max_running_per_tenant:
            return False
        self.running_count += 1
        self._running_by_tenant[tenant] = running + 1
        return True

    def is_tenant_full(self, tenant: str) -> bool:
        """Returns whether the tenant has reached its own limit."""
        return self._running_by_tenant.get(tenant, 0) >= self._max_running_per_tenant

    def enqueue(self, queued_request: QueuedRequest) -> QueuedRequest | None:
        """Adds a request behind the tenant's own requests. To be called after `try_acquire_slot` returned False.

        Returns:
            The request that must leave the queue for this one, if the queue is full; or this request itself, if it
            finds no room.
        """
        if self.waiting_count >= self._max_waiting:
            # A full queue makes room for a tenant that has fewer requests in it than another one: the newest request of
            # the longest queue leaves. Otherwise the tenant that fills the queue would lock out all others.
            own_queue = self._find_tenant_queue(queued_request.tenant)
            longest_queue = max((*self._ready_tenants.values(), *self._blocked_tenants.values()), key=len, default=None)
            # With this request, the tenant's queue would be as long as the longest one: to exchange them would only let
            # the two take turns in evicting each other.
            if longest_queue is None or len(longest_queue) <= (len(own_queue) if own_queue else 0) + 1:
                queued_request.is_waiting = False
                return queued_request
            evicted = next(reversed(longest_queue))
            self.remove(evicted)
        else:
            evicted = None
        tenants = self._blocked_tenants if self.is_tenant_full(queued_request.tenant) else self._ready_tenants
        tenants.setdefault(queued_request.tenant, OrderedDict())[queued_request] = None
        self.waiting_count += 1
        return evicted

    def remove(self, queued_request: QueuedRequest) -> bool:
        """Removes a request from the queue. Returns False if it is not in the queue any more: it was admitted or
        evicted."""
        if not queued_request.is_waiting:
            return False
        tenants = self._ready_tenants if queued_request.tenant in self._ready_tenants else self._blocked_tenants
        self._remove_queued(tenants, queued_request)
        return True

    def release_slot(self, tenant: str) -> QueuedRequest | None:
        """Gives back a tenant's slot.

        Returns:
            The request that is admitted next; it holds the slot from now on.
        """
        running = self._running_by_tenant[tenant] - 1
        if running:
            self._running_by_tenant[tenant] = running
        else:
            del self._running_by_tenant[tenant]
        self.running_count -= 1
        if not self.waiting_count:
            return None
        # The tenant is below its own limit again, so it joins the end of the circle of tenants.
        if tenant in self._blocked_tenants:
            self._ready_tenants[tenant] = self._blocked_tenants.pop(tenant)
        return self._admit_next()

    def find_oldest(self, tenant: str) -> QueuedRequest | None:
        """Returns the tenant's request that has waited longest."""
        queue = self._find_tenant_queue(tenant)
        return next(iter(queue)) if queue else None

    def _admit_next(self) -> QueuedRequest | None:
        if not self._ready_tenants or self.running_count >= self._max_running:
            return None
        tenant, queue = next(iter(self._ready_tenants.items()))
        queued_request = next(iter(queue))
        self._remove_queued(self._ready_tenants, queued_request)
        self.try_acquire_slot(tenant)
        if tenant in self._ready_tenants:
            # A tenant goes to the end of the circle after each admission. A tenant at its own limit leaves the circle,
            # so that the first ready tenant can always run.
            if self.is_tenant_full(tenant):
                self._blocked_tenants[tenant] = self._ready_tenants.pop(tenant)
            else:
                self._ready_tenants.move_to_end(tenant)
        return queued_request

    def _remove_queued(self, tenants: OrderedDict[str, _TenantQueue], queued_request: QueuedRequest) -> None:
        queue = tenants[queued_request.tenant]
        del queue[queued_request]
        if not queue:
            del tenants[queued_request.tenant]
        queued_request.is_waiting = False
        self.waiting_count -= 1

    def _find_tenant_queue(self, tenant: str) -> _TenantQueue | None:
        return self._ready_tenants.get(tenant) or self._blocked_tenants.get(tenant)


BYTES_PER_TOKEN: Final = 4


class RateSettings(msgspec.Struct, frozen=True):
    """How many requests or tokens a minute may have. 0: no limit."""

    key: int = 0
    tenant: int = 0
    all: int = 0


NO_RATES: Final = RateSettings()


@dataclass(eq=False)
class CallLimits:
    """The limits of all callers.

    Args:
        requests, tokens: the rates of the settings. A key's own rate stands before that for each key.
        assumed_answer_tokens: how long an answer may become if its request has no limit.
    """

    budgets: KeyBudgets
    rates: RateLimits
    requests: RateSettings
    tokens: RateSettings
    assumed_answer_tokens: int

    def is_limited(self, caller: Caller) -> bool:
        """Returns whether anything is limited for a caller."""
        has_rates = self.requests != NO_RATES or self.tokens != NO_RATES
        return bool(has_rates or caller.budget_usd or caller.requests_per_minute or caller.tokens_per_minute)

    async def admit(self, caller: Caller, *, body_bytes: int = 0, answer_tokens: int = 0) -> CallAllowance | None:
        """Counts a request in the rates of its caller, and checks that the caller's budget has something left.

        Args:
            body_bytes: of the request; a token has four of them.
            answer_tokens: the most tokens that all its answers may have together.

        Returns:
            What the request may use, to be finished at its end; None if nothing is limited for the caller.

        Raises:
            BudgetExceeded: the budget is spent, or reserved by running requests.
            RateLimitExceeded: there were too many requests or tokens in the last minute.
        """
        await self.budgets.check_budget(caller.budget)
        counted_call = await self.rates.count_call(
            self._list_rates(caller), tokens=body_bytes // BYTES_PER_TOKEN + answer_tokens
        )
        if counted_call is None and caller.budget is None:
            return None
        return CallAllowance(self.budgets, caller.budget, self.rates, counted_call, self.compute_answer_tokens)

    def compute_answer_tokens(self, limit: int | None, choice_count: int = 1) -> int:
        """Returns the most tokens that the answers to a request may have together.

        Args:
            limit: the request's limit for one answer, as the client wrote it.
        """
        return (limit if limit is not None and limit > 0 else self.assumed_answer_tokens) * max(1, choice_count)

    def _list_rates(self, caller: Caller) -> list[RateLimit]:
        """Lists the rates of a caller, the widest first."""
        rates = [
            RateLimit("all", self.requests.all or None, self.tokens.all or None),
            RateLimit(
                f"tenant {extract_application_tenant(caller.tenant)}",
                self.requests.tenant or None,
                self.tokens.tenant or None,
            ),
        ]
        if caller.api_key_id is not None:
            requests = caller.requests_per_minute or self.requests.key or None
            tokens = caller.tokens_per_minute or self.tokens.key or None
            rates.append(RateLimit(f"key {caller.api_key_id}", requests, tokens))
        return [rate for rate in rates if rate.requests or rate.tokens]
