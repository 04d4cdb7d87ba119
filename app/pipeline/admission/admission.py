"""Lets requests that ask a model begin, one by one where there are many: a bounded number at once, in total and of each
tenant, and behind them a bounded line in which tenants take turns (`line`).

What is bounded is this process; several have their bounds each. Calls for summaries are no requests of anybody's and
have bounds of their own: `preparing.MOST_AT_ONCE`, and those of one request at once in `compaction`.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from app.errors import GatewayError, Overloaded, RateLimitExceeded, RequestAbandoned
from app.observability.metric_families import ADMISSION_WAIT_SECONDS, ADMITTED, REFUSALS, WAITING
from app.observability.metrics import SILENT, Metrics

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


NO_BOUND: Final = sys.maxsize


class Bounds(msgspec.Struct, frozen=True):
    """How many requests may run at once and how many may wait. 0 places: as many as come."""

    places: int = 0
    places_per_tenant: int = 0
    waiting: int = 0
    """All tenants together; 0: nobody waits."""
    wait_seconds: float = 0.0


class Ticket:
    """One request's place in the line.

    Attributes:
        began: when it joined the line, in monotonic seconds.
        turn: whatever its owner wants to be found by.
    """

    __slots__ = ("began", "is_waiting", "tenant", "turn")

    def __init__(self, tenant: str, began: float, turn: Any) -> None:
        self.tenant = tenant
        self.began = began
        self.turn = turn
        self.is_waiting = True


_Queue = OrderedDict[Ticket, None]


class Line:
    """The places and the line before them.

    Attributes:
        running, waiting: requests that have a place, and that wait for one.
    """

    __slots__ = ("_blocked", "_held", "_most", "_most_per_tenant", "_most_waiting", "_ready", "running", "waiting")

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.places or NO_BOUND
        self._most_per_tenant = bounds.places_per_tenant or NO_BOUND
        self._most_waiting = bounds.waiting
        self._held: dict[str, int] = {}
        self._ready: OrderedDict[str, _Queue] = OrderedDict()
        """Tenants that wait for anybody's place, in the order of their turns."""
        self._blocked: OrderedDict[str, _Queue] = OrderedDict()
        """Tenants that wait for a place of their own."""
        self.running = 0
        self.waiting = 0

    def take(self, tenant: str) -> bool:
        """Begin at once, where that is possible."""
        held = self._held.get(tenant, 0)
        if self.running >= self._most or held >= self._most_per_tenant:
            return False
        self.running += 1
        self._held[tenant] = held + 1
        return True

    def is_at_own_bound(self, tenant: str) -> bool:
        """Whether what keeps a tenant waiting is its own doing."""
        return self._held.get(tenant, 0) >= self._most_per_tenant

    def join(self, ticket: Ticket) -> Ticket | None:
        """Wait, behind the tenant's own requests. To be called where `take` said no.

        Returns:
            Who is out of the line for it, being the ticket itself where it finds no room. A full line makes room for a
            tenant that has fewer in it than another: the newest of whoever has most has to go.
        """
        if self.waiting >= self._most_waiting:
            own = self._queue(ticket.tenant)
            longest = max((*self._ready.values(), *self._blocked.values()), key=len, default=None)
            if longest is None or len(longest) <= (len(own) if own else 0) + 1:
                ticket.is_waiting = False
                return ticket
            out = next(reversed(longest))
            self.leave(out)
        else:
            out = None
        tenants = self._blocked if self.is_at_own_bound(ticket.tenant) else self._ready
        tenants.setdefault(ticket.tenant, OrderedDict())[ticket] = None
        self.waiting += 1
        return out

    def leave(self, ticket: Ticket) -> bool:
        """Wait no longer. False where the ticket waits no more: it has a place, or had to go."""
        if not ticket.is_waiting:
            return False
        tenants = self._ready if ticket.tenant in self._ready else self._blocked
        self._take_out(tenants, ticket)
        return True

    def give_back(self, tenant: str) -> Ticket | None:
        """A request is over.

        Returns:
            Whose turn it is: it has the place from now on.
        """
        held = self._held[tenant] - 1
        if held:
            self._held[tenant] = held
        else:
            del self._held[tenant]
        self.running -= 1
        if not self.waiting:
            return None
        if tenant in self._blocked:
            self._ready[tenant] = self._blocked.pop(tenant)
        return self._next()

    def oldest(self, tenant: str) -> Ticket | None:
        """Of a tenant's requests that wait, the one that has waited longest."""
        queue = self._queue(tenant)
        return next(iter(queue)) if queue else None

    def _next(self) -> Ticket | None:
        if not self._ready or self.running >= self._most:
            return None
        tenant, queue = next(iter(self._ready.items()))
        ticket = next(iter(queue))
        self._take_out(self._ready, ticket)
        self.take(tenant)
        if tenant in self._ready:
            if self.is_at_own_bound(tenant):
                self._blocked[tenant] = self._ready.pop(tenant)
            else:
                self._ready.move_to_end(tenant)
        return ticket

    def _take_out(self, tenants: OrderedDict[str, _Queue], ticket: Ticket) -> None:
        queue = tenants[ticket.tenant]
        del queue[ticket]
        if not queue:
            del tenants[ticket.tenant]
        ticket.is_waiting = False
        self.waiting -= 1

    def _queue(self, tenant: str) -> _Queue | None:
        return self._ready.get(tenant) or self._blocked.get(tenant)
