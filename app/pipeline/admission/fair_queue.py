"""Who may begin, who waits and who is next: a bounded number of places, shared among tenants in turn. Pure.

Two rules hold after every call: nobody waits who could begin, so that nobody is overtaken; and among tenants that wait
and may begin, each free place goes to the next in a circle, so that one with many requests delays nobody but itself.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Final

import msgspec

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
