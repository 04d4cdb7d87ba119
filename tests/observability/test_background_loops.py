"""A loop goes on whatever its work raises, says so, and waits longer after each failure. A dead one is known."""

from __future__ import annotations

import asyncio
import logging

import pytest

from app.observability import metric_families as f
from app.observability.background_loops import MAX_RETRY_SECONDS, BackgroundLoop
from app.observability.metrics import Metrics

Outcome = BaseException | None


class Scene:
    """A loop whose runs end as the test says, and whose pauses are only noted."""

    def __init__(self, *outcomes: Outcome, **options: float) -> None:
        self.outcomes = list(outcomes)
        self.pauses: list[float] = []
        self.done = asyncio.Event()
        self.metrics = Metrics()
        self.loop = BackgroundLoop(
            "work", self.run_once, lambda: 5.0, metrics=self.metrics, sleep=self.sleep, **options
        )

    async def run_once(self) -> None:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self.outcomes:
            self.done.set()
            await asyncio.Event().wait()

    async def run(self, first_pause_seconds: float | None = None) -> list[float]:
        self.loop.start(first_pause_seconds)
        await asyncio.wait_for(self.done.wait(), 5)
        assert not self.loop.is_dead
        await self.loop.aclose()
        return self.pauses


async def test_a_loop_survives_every_error_and_pauses_longer_after_each(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(OSError("no"), MemoryError(), asyncio.CancelledError(), KeyError(1), TypeError(), None)
    assert await scene.run() == [5, 10, 20, 40, MAX_RETRY_SECONDS, MAX_RETRY_SECONDS, 5]
    assert scene.metrics.read_snapshot().sum_series(f.LOOP_FAILURES, loop="work") == 5
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 5
    assert "the background loop 'work' failed 5 times in a row: TypeError" in caplog.text


async def test_the_first_pause_can_be_none_and_the_longest_the_usual_one() -> None:
    assert await Scene(ValueError(), ValueError(), None, max_retry_seconds=0.0).run(0.0) == [5, 5, 5]


async def test_a_loop_that_was_ended_by_somebody_else_is_dead() -> None:
    scene = Scene(None)
    scene.loop.start()
    await asyncio.wait_for(scene.done.wait(), 5)
    assert scene.loop._task is not None
    scene.loop._task.cancel()
    await asyncio.wait([scene.loop._task])
    assert scene.loop.is_dead


async def test_a_loop_that_was_closed_or_never_started_is_not_dead() -> None:
    scene = Scene(None)
    assert not scene.loop.is_dead
    await scene.run()
    assert not scene.loop.is_dead
