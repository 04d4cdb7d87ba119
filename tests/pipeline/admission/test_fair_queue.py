"""However requests come and go: bounds hold, nobody who could begin waits, and tenants take turns."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.pipeline.admission.admission import Bounds, Line, Ticket

TENANTS = "abcd"


def lined_up(line: Line, tenants: str) -> list[Ticket]:
    tickets = [Ticket(tenant, number, None) for number, tenant in enumerate(tenants)]
    for ticket in tickets:
        assert not line.take(ticket.tenant)
        assert line.join(ticket) is None
    return tickets


def served(line: Line, *, by: str, times: int) -> str:
    """Whose turn it is each time that a request of tenant `by` or of the last one served is over."""
    turns = ""
    for _ in range(times):
        ticket = line.give_back(by)
        if ticket is None:
            break
        turns += ticket.tenant
        by = ticket.tenant
    return turns


def test_a_noisy_tenant_delays_others_by_one_request_each() -> None:
    line = Line(Bounds(places=1, waiting=100))
    assert line.take("a")
    lined_up(line, "aaaaaabbc")
    assert served(line, by="a", times=9) == "abcabaaaa"


def test_a_tenants_own_requests_begin_in_their_order() -> None:
    line = Line(Bounds(places=1, waiting=100))
    assert line.take("a")
    tickets = lined_up(line, "aaa")
    assert [line.give_back("a") for _ in tickets] == tickets


def test_a_tenant_at_its_own_bound_leaves_places_to_others() -> None:
    line = Line(Bounds(places=3, places_per_tenant=2, waiting=10))
    assert line.take("a")
    assert line.take("a")
    of_a, *_ = lined_up(line, "aa")
    assert line.take("b")
    (of_b,) = lined_up(line, "b")
    assert line.give_back("a") is of_b
    assert line.give_back("b") is of_a


def test_a_full_line_makes_room_for_a_tenant_that_has_less_in_it() -> None:
    line = Line(Bounds(places=1, waiting=3))
    assert line.take("a")
    *_, newest = lined_up(line, "aaa")
    other = Ticket("b", 9, None)
    assert line.join(other) is newest
    assert not newest.is_waiting
    assert other.is_waiting
    refused = Ticket("a", 10, None)
    assert line.join(refused) is refused
    assert line.waiting == 3


def test_without_bounds_everybody_begins_at_once() -> None:
    line = Line(Bounds())
    assert all(line.take("a") for _ in range(10_000))


@given(st.lists(st.sampled_from(TENANTS), min_size=2, max_size=60), st.integers(1, 4))
def test_no_tenant_waits_for_more_than_one_turn_of_each_other(tenants: list[str], places: int) -> None:
    """Between two turns of a tenant that waits, nobody else has two."""
    line = Line(Bounds(places=places, waiting=1000))
    running: deque[str] = deque()
    waiting: Counter[str] = Counter()
    for number, tenant in enumerate(tenants):
        if line.take(tenant):
            running.append(tenant)
        else:
            line.join(Ticket(tenant, number, None))
            waiting[tenant] += 1
    since: dict[str, Counter[str]] = {tenant: Counter() for tenant in waiting}
    while running:
        ticket = line.give_back(running.popleft())
        if ticket is None:
            continue
        running.append(ticket.tenant)
        for tenant, others in since.items():
            if tenant != ticket.tenant and waiting[tenant]:
                others[ticket.tenant] += 1
                assert others[ticket.tenant] <= 1
        since[ticket.tenant].clear()
        waiting[ticket.tenant] -= 1
    assert not +waiting
    assert (line.running, line.waiting) == (0, 0)


class Coming(RuleBasedStateMachine):
    """Requests of several tenants that come, wait, give up and end, against a list of what must be true."""

    bounds = Bounds(places=4, places_per_tenant=2, waiting=5)

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(self.bounds)
        self.running: list[str] = []
        self.tickets: list[Ticket] = []
        self.refused = 0

    @rule(tenant=st.sampled_from(TENANTS))
    def comes(self, tenant: str) -> None:
        if self.line.take(tenant):
            self.running.append(tenant)
            return
        ticket = Ticket(tenant, 0, None)
        out = self.line.join(ticket)
        self.tickets.append(ticket)
        if out is not None:
            assert not out.is_waiting
            self.tickets.remove(out)
            self.refused += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from(self.running))
        self.running.remove(tenant)
        ticket = self.line.give_back(tenant)
        if ticket is not None:
            assert not self.line.leave(ticket)
            self.tickets.remove(ticket)
            self.running.append(ticket.tenant)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        assert self.line.leave(ticket)
        assert not self.line.leave(ticket)

    @invariant()
    def bounds_hold(self) -> None:
        held = Counter(self.running)
        assert self.line.running == len(self.running) <= self.bounds.places
        assert self.line.waiting == len(self.tickets) <= self.bounds.waiting
        assert max(held.values(), default=0) <= self.bounds.places_per_tenant

    @invariant()
    def nobody_waits_who_could_begin(self) -> None:
        held = Counter(self.running)
        if len(self.running) < self.bounds.places:
            assert all(held[ticket.tenant] >= self.bounds.places_per_tenant for ticket in self.tickets)

    def teardown(self) -> None:
        """All that wait are served in the end."""
        while self.running:
            ticket = self.line.give_back(self.running.pop())
            if ticket is not None:
                self.tickets.remove(ticket)
                self.running.append(ticket.tenant)
        assert self.tickets == []
        assert (self.line.running, self.line.waiting) == (0, 0)


TestComing = Coming.TestCase
TestComing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
