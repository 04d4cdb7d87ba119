"""However requests come, end, give up and hang up: every one is served, refused or gone, and every place comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.assembly.gateway import build_admission_bounds
from app.errors import GatewayError, Overloaded, RateLimitExceeded, RequestAbandoned
from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.settings import load_settings

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "end", "cancel", "hang up"]), st.integers(0, 30), st.sampled_from("abc")
    ),
    max_size=60,
)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Asked:
    """A request: waits for a place, then holds it until it is told to end."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self.tenant = tenant
        self.gone = False
        self.runs = False
        self.end = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(admission))

    async def _run(self, admission: Admission) -> None:
        async with admission.hold_slot(self.tenant, lambda: self.gone):
            self.runs = True
            await self.end.wait()
        self.runs = False


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def build_admission(bounds: AdmissionBounds, clock: Clock) -> Admission:
    return Admission(bounds, clock=clock, disconnect_poll_seconds=0.001)


@given(STEPS)
def test_every_request_is_served_refused_or_gone(steps: list[tuple[str, int, str]]) -> None:
    bounds = AdmissionBounds(max_running=3, max_running_per_tenant=2, max_waiting=4, max_wait_seconds=60)

    async def play() -> None:
        admission = build_admission(bounds, clock=Clock())
        asked: list[Asked] = []
        for what, which, tenant in steps:
            if what == "come":
                asked.append(Asked(admission, tenant))
            elif asked:
                one = asked[which % len(asked)]
                if what == "end":
                    one.end.set()
                elif what == "cancel":
                    one.task.cancel()
                else:
                    one.gone = True
            if which % 3:
                await settle()
            runs = [one for one in asked if one.runs and not one.task.done()]
            assert admission.queue.running_count <= bounds.max_running
            assert len(runs) <= bounds.max_running
            assert all(sum(one.tenant == tenant for one in runs) <= bounds.max_running_per_tenant for tenant in "abc")
            assert admission.queue.waiting_count <= bounds.max_waiting
        for one in asked:
            one.end.set()
        ended: list[Any] = await asyncio.wait_for(
            asyncio.gather(*(one.task for one in asked), return_exceptions=True), timeout=10
        )
        assert all(end is None or isinstance(end, GatewayError | asyncio.CancelledError) for end in ended)
        assert (admission.queue.running_count, admission.queue.waiting_count) == (0, 0)

    asyncio.run(play())


async def test_what_is_told_of_the_wait_is_what_others_wait() -> None:
    clock = Clock()
    admission = build_admission(AdmissionBounds(max_running=1, max_waiting=1, max_wait_seconds=600), clock=clock)
    first, second = Asked(admission, "a"), Asked(admission, "a")
    await settle()
    clock.seconds = 7.3
    with pytest.raises(Overloaded) as refused:
        await admission.acquire_slot("a", lambda: False)
    assert refused.value.retry_after_seconds == 8
    clock.seconds = 500
    with pytest.raises(Overloaded) as refused:
        await admission.acquire_slot("a", lambda: False)
    assert refused.value.retry_after_seconds == 60
    first.end.set()
    second.end.set()
    await asyncio.gather(first.task, second.task)


async def test_who_has_waited_too_long_is_told_whose_bound_it_was() -> None:
    clock = Clock()
    admission = build_admission(
        AdmissionBounds(max_running=2, max_running_per_tenant=1, max_waiting=9, max_wait_seconds=5), clock=clock
    )
    first, own, other, third = (Asked(admission, tenant) for tenant in "aabc")
    await settle()
    clock.seconds = 6
    for one, error in ((own, RateLimitExceeded), (third, Overloaded)):
        with pytest.raises(error, match="within 5 seconds"):
            await one.task
    for one in (first, other):
        one.end.set()
        await one.task
    assert (admission.queue.running_count, admission.queue.waiting_count) == (0, 0)


async def test_who_was_displaced_is_refused_at_once() -> None:
    admission = build_admission(AdmissionBounds(max_running=1, max_waiting=2, max_wait_seconds=60), clock=Clock())
    first, *noise = (Asked(admission, "a") for _ in range(3))
    await settle()
    quiet = Asked(admission, "b")
    with pytest.raises(Overloaded, match="the queue is full"):
        await noise[-1].task
    for one in (first, noise[0], quiet):
        one.end.set()
    await asyncio.gather(first.task, noise[0].task, quiet.task)


async def test_a_turn_that_comes_for_somebody_who_has_left_goes_to_the_next() -> None:
    admission = build_admission(AdmissionBounds(max_running=1, max_waiting=9, max_wait_seconds=60), clock=Clock())
    first, left, following = (Asked(admission, "a") for _ in range(3))
    await settle()
    left.gone = True
    first.end.set()
    with pytest.raises(RequestAbandoned):
        await left.task
    await settle()
    assert following.runs
    following.end.set()
    await following.task


def test_by_default_no_tenant_takes_every_place() -> None:
    bounds = build_admission_bounds(load_settings(environ={}))
    admission = build_admission(bounds, clock=Clock())
    taken = sum(admission.queue.try_acquire_slot("a") for _ in range(bounds.max_running))
    assert 0 < taken <= bounds.max_running // 2
    assert admission.queue.try_acquire_slot("b")
