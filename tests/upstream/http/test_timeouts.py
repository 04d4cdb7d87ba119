"""Limits on the time an answer takes, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from app.upstream.http.reply_timeouts import ReplyTimeout


class Clock:
    """As much of an event loop as a watch needs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.seconds

    def call_at(self, when: float, look: Callable[[], None]) -> SimpleNamespace:
        timer = (when, look)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def move_to(self, seconds: float) -> None:
        while self.timers and min(self.timers)[0] <= seconds:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.seconds = timer[0]
            timer[1]()
        self.seconds = seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def expired_at() -> list[float]:
    return []


def watch(
    clock: Clock, expired_at: list[float], silence: float | None = None, ends_at: float | None = None
) -> ReplyTimeout:
    made = ReplyTimeout(lambda: expired_at.append(clock.seconds))
    made.start(silence_seconds=silence, deadline=ends_at)
    return made


def test_silence_ends_at_its_limit(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=10)
    clock.move_to(6)
    watched.waiting_since = 6
    clock.move_to(100)
    assert expired_at == [16]


def test_time_in_which_nobody_waits_is_no_silence(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=10)
    watched.waiting_since = None
    clock.move_to(95)
    watched.waiting_since = 95
    clock.move_to(104)
    assert not expired_at
    clock.move_to(200)
    assert expired_at == [105]


def test_the_whole_ends_though_pieces_come(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=10, ends_at=25)
    for seconds in range(40):
        clock.move_to(seconds)
        watched.waiting_since = seconds
    assert expired_at == [25]


def test_another_limit_holds_at_once(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=600)
    clock.move_to(3)
    watched.waiting_since = 3
    watched.set_silence_limit(2)
    clock.move_to(50)
    assert expired_at == [5]


def test_many_pieces_take_few_timers(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=100)
    looks = 0
    for tenth in range(2_000):
        looks += bool(clock.timers and clock.timers[0][0] <= tenth / 10)
        clock.move_to(tenth / 10)
        watched.waiting_since = tenth / 10
    assert looks <= 2
    assert not expired_at


def test_nothing_is_due_without_limits_or_once_stopped(clock: Clock, expired_at: list[float]) -> None:
    watch(clock, expired_at)
    assert not clock.timers
    watch(clock, expired_at, silence=1, ends_at=2).stop()
    clock.move_to(100)
    assert not expired_at
    assert not clock.timers


def test_all_answers_of_a_connection_share_one_timer(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=30)
    for silence in (10.0, 20.0, 10.0):
        watched.stop()
        watched.start(silence_seconds=silence, deadline=None)
        assert len(clock.timers) == 1
    clock.move_to(9)
    watched.waiting_since = 9
    clock.move_to(18)
    assert not expired_at
    assert len(clock.timers) == 1
    watched.close()
    assert not clock.timers


def test_an_answer_that_came_too_late_is_told_once(clock: Clock, expired_at: list[float]) -> None:
    watch(clock, expired_at, silence=10, ends_at=25)
    clock.move_to(100)
    assert expired_at == [10]
    assert not clock.timers


def test_a_watch_begins_again_for_the_next_answer(clock: Clock, expired_at: list[float]) -> None:
    watched = watch(clock, expired_at, silence=10, ends_at=15)
    clock.move_to(8)
    watched.stop()
    watched.start(silence_seconds=10, deadline=None)
    clock.move_to(17)
    assert not expired_at
    clock.move_to(50)
    assert expired_at == [18]
