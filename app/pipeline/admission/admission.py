"""Lets requests that ask a model begin, one by one where there are many: a bounded number at once, in total and of each
tenant, and behind them a bounded line in which tenants take turns (`line`).

What is bounded is this process; several have their bounds each. Calls for summaries are no requests of anybody's and
have bounds of their own: `preparing.MOST_AT_ONCE`, and those of one request at once in `compaction`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from app.errors import GatewayError, Overloaded, RateLimitExceeded, RequestAbandoned
from app.observability.metric_families import ADMISSION_WAIT_SECONDS, ADMITTED, REFUSALS, WAITING
from app.observability.metrics import SILENT, Metrics
from app.pipeline.admission.fair_queue import Bounds, Line, Ticket

LOOK_SECONDS: Final = 0.25
"""How often it is looked whether somebody in the line is still there."""
RETRY_AFTER_SECONDS: Final = (1, 60)
"""Bounds of what a refused client is told to wait. With more than 60 some SDKs do not come back at all."""


class Admission:
    """The places of one process.

    Args:
        clock: monotonic seconds.
    """

    __slots__ = ("_bounds", "_clock", "_last_wait_seconds", "_line", "_metrics", "take")

    def __init__(self, bounds: Bounds, *, clock: Callable[[], float], metrics: Metrics = SILENT) -> None:
        self._bounds = bounds
        self._clock = clock
        self._metrics = metrics
        self._line = line = Line(bounds)
        self._last_wait_seconds = 0.0
        self.take = line.take
        """Take a place of a tenant's where there is one at once. Bound here, since every request comes by."""
        metrics.watch(ADMITTED, lambda: line.running)
        metrics.watch(WAITING, lambda: line.waiting)

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return self._line.running

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return self._line.waiting

    async def enter(self, tenant: str, has_left: Callable[[], bool]) -> None:
        """Take a place, at once or in turn.

        Raises:
            GatewayError: as `wait`.
        """
        if not self.take(tenant):
            await self.wait(tenant, has_left)

    async def wait(self, tenant: str, has_left: Callable[[], bool]) -> None:
        """Take a place once it is the tenant's turn. To be called where `take` said no.

        Args:
            has_left: whether nobody waits for the answer any more.

        Raises:
            RateLimitExceeded: the line is full or it took too long, and the tenant itself has all it may have.
            Overloaded: likewise, because of everybody.
            RequestAbandoned: its client has left.
        """
        began = self._clock()
        ticket = Ticket(tenant, began, asyncio.get_running_loop().create_future())
        out = self._line.join(ticket)
        if out is ticket:
            raise self._refused(tenant, "full")
        if out is not None:
            out.turn.set_exception(self._refused(out.tenant, "full"))
        try:
            await self._until_turn(ticket, has_left)
        except BaseException:
            if not self._line.leave(ticket) and ticket.turn.done() and ticket.turn.exception() is None:
                self.give_back(tenant)
            raise
        self._last_wait_seconds = self._clock() - began
        self._metrics.observed(ADMISSION_WAIT_SECONDS).add(self._last_wait_seconds)

    def give_back(self, tenant: str) -> None:
        """An answer is over, however it ended."""
        ticket = self._line.give_back(tenant)
        if ticket is not None:
            ticket.turn.set_result(None)

    @asynccontextmanager
    async def place(self, tenant: str, has_left: Callable[[], bool]) -> AsyncIterator[None]:
        """A place for as long as this is open.

        Raises:
            GatewayError: as `wait`.
        """
        await self.enter(tenant, has_left)
        try:
            yield
        finally:
            self.give_back(tenant)

    async def _until_turn(self, ticket: Ticket, has_left: Callable[[], bool]) -> None:
        while not ticket.turn.done():
            left_seconds = ticket.began + self._bounds.wait_seconds - self._clock()
            if left_seconds <= 0:
                raise self._refused(ticket.tenant, "wait")
            await asyncio.wait({ticket.turn}, timeout=min(LOOK_SECONDS, left_seconds))
            if has_left():
                raise RequestAbandoned("The client left before there was a place for its request.")
        ticket.turn.result()

    def _refused(self, tenant: str, why: str) -> GatewayError:
        """Told in both cases after how long it is worth while to come again: as long as others wait by now."""
        own = self._line.is_at_own_bound(tenant)
        self._metrics.counted(REFUSALS, f"tenant_{why}" if own else why).add()
        waited = self._bounds.wait_seconds
        how = f"none became free within {waited:g} seconds" if why == "wait" else "the line for them is full"
        pause_seconds = self._retry_after_seconds(tenant)
        if own:
            most = self._bounds.places_per_tenant
            return RateLimitExceeded(
                f"This caller has {most} requests running, which is as many as it may have, and {how}.",
                hint="Send fewer at once, or raise `limits.max_concurrent_per_tenant`.",
                retry_after_seconds=pause_seconds,
            )
        return Overloaded(
            f"The gateway has {self._bounds.places} requests running, which is as many as it may have, and {how}.",
            hint="Try again, or raise `limits.max_concurrent_requests`.",
            retry_after_seconds=pause_seconds,
        )

    def _retry_after_seconds(self, tenant: str) -> int:
        """As long as the tenant's oldest request has waited, or the last one did that came in."""
        oldest = self._line.oldest(tenant)
        so_far = self._clock() - oldest.began if oldest is not None else 0.0
        least, most = RETRY_AFTER_SECONDS
        return min(most, max(least, math.ceil(max(so_far, self._last_wait_seconds))))
