"""However requests come and go: bounds hold, nobody who could begin waits, and tenants take turns."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.pipeline.admission.admission import AdmissionBounds, FairQueue, QueuedRequest

TENANTS = "abcd"


def lined_up(line: FairQueue, tenants: str) -> list[QueuedRequest]:
    tickets = [QueuedRequest(tenant, number, None) for number, tenant in enumerate(tenants)]
    for ticket in tickets:
        assert not line.try_acquire_slot(ticket.tenant)
        assert line.enqueue(ticket) is None
    return tickets


def served(line: FairQueue, *, by: str, times: int) -> str:
    """Whose turn it is each time that a request of tenant `by` or of the last one served is over."""
    turns = ""
    for _ in range(times):
        ticket = line.release_slot(by)
        if ticket is None:
            break
        turns += ticket.tenant
        by = ticket.tenant
    return turns


def test_a_noisy_tenant_delays_others_by_one_request_each() -> None:
    line = FairQueue(AdmissionBounds(max_running=1, max_waiting=100))
    assert line.try_acquire_slot("a")
    lined_up(line, "aaaaaabbc")
    assert served(line, by="a", times=9) == "abcabaaaa"


def test_a_tenants_own_requests_begin_in_their_order() -> None:
    line = FairQueue(AdmissionBounds(max_running=1, max_waiting=100))
    assert line.try_acquire_slot("a")
    tickets = lined_up(line, "aaa")
    assert [line.release_slot("a") for _ in tickets] == tickets


def test_a_tenant_at_its_own_bound_leaves_places_to_others() -> None:
    line = FairQueue(AdmissionBounds(max_running=3, max_running_per_tenant=2, max_waiting=10))
    assert line.try_acquire_slot("a")
    assert line.try_acquire_slot("a")
    of_a, *_ = lined_up(line, "aa")
    assert line.try_acquire_slot("b")
    (of_b,) = lined_up(line, "b")
    assert line.release_slot("a") is of_b
    assert line.release_slot("b") is of_a


def test_a_full_line_makes_room_for_a_tenant_that_has_less_in_it() -> None:
    line = FairQueue(AdmissionBounds(max_running=1, max_waiting=3))
    assert line.try_acquire_slot("a")
    *_, newest = lined_up(line, "aaa")
    other = QueuedRequest("b", 9, None)
    assert line.enqueue(other) is newest
    assert not newest.is_waiting
    assert other.is_waiting
    refused = QueuedRequest("a", 10, None)
    assert line.enqueue(refused) is refused
    assert line.waiting_count == 3


def test_without_bounds_everybody_begins_at_once() -> None:
    line = FairQueue(AdmissionBounds())
    assert all(line.try_acquire_slot("a") for _ in range(10_000))


@given(st.lists(st.sampled_from(TENANTS), min_size=2, max_size=60), st.integers(1, 4))
def test_no_tenant_waits_for_more_than_one_turn_of_each_other(tenants: list[str], places: int) -> None:
    """Between two turns of a tenant that waits, nobody else has two."""
    line = FairQueue(AdmissionBounds(max_running=places, max_waiting=1000))
    running: deque[str] = deque()
    waiting: Counter[str] = Counter()
    for number, tenant in enumerate(tenants):
        if line.try_acquire_slot(tenant):
            running.append(tenant)
        else:
            line.enqueue(QueuedRequest(tenant, number, None))
            waiting[tenant] += 1
    since: dict[str, Counter[str]] = {tenant: Counter() for tenant in waiting}
    while running:
        ticket = line.release_slot(running.popleft())
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
    assert (line.running_count, line.waiting_count) == (0, 0)


class Coming(RuleBasedStateMachine):
    """Requests of several tenants that come, wait, give up and end, against a list of what must be true."""

    bounds = AdmissionBounds(max_running=4, max_running_per_tenant=2, max_waiting=5)

    def __init__(self) -> None:
        super().__init__()
        self.line = FairQueue(self.bounds)
        self.running: list[str] = []
        self.tickets: list[QueuedRequest] = []
        self.refused = 0

    @rule(tenant=st.sampled_from(TENANTS))
    def comes(self, tenant: str) -> None:
        if self.line.try_acquire_slot(tenant):
            self.running.append(tenant)
            return
        ticket = QueuedRequest(tenant, 0, None)
        out = self.line.enqueue(ticket)
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
        ticket = self.line.release_slot(tenant)
        if ticket is not None:
            assert not self.line.remove(ticket)
            self.tickets.remove(ticket)
            self.running.append(ticket.tenant)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        assert self.line.remove(ticket)
        assert not self.line.remove(ticket)

    @invariant()
    def bounds_hold(self) -> None:
        held = Counter(self.running)
        assert self.line.running_count == len(self.running) <= self.bounds.max_running
        assert self.line.waiting_count == len(self.tickets) <= self.bounds.max_waiting
        assert max(held.values(), default=0) <= self.bounds.max_running_per_tenant

    @invariant()
    def nobody_waits_who_could_begin(self) -> None:
        held = Counter(self.running)
        if len(self.running) < self.bounds.max_running:
            assert all(held[ticket.tenant] >= self.bounds.max_running_per_tenant for ticket in self.tickets)

    def teardown(self) -> None:
        """All that wait are served in the end."""
        while self.running:
            ticket = self.line.release_slot(self.running.pop())
            if ticket is not None:
                self.tickets.remove(ticket)
                self.running.append(ticket.tenant)
        assert self.tickets == []
        assert (self.line.running_count, self.line.waiting_count) == (0, 0)


TestComing = Coming.TestCase
TestComing.settings = settings(stateful_step_count=40)
