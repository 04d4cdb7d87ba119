"""Loops that run as long as the process: each repeats a piece of work, and none ends by an error of the work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from app.observability.metric_families import LOOP_FAILURES
from app.observability.metrics import Metrics

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS: Final = 60.0
"""The longest pause after failures, unless the usual pause is longer."""
MAX_DOUBLINGS: Final = 10


class BackgroundLoop:
    """Repeats a piece of work with pauses between. After each failure in a row the pause is twice as long.

    Args:
        name: a label of the metrics.
        run_once: the work.
        choose_pause: returns the usual pause, in seconds.
        max_retry_seconds: the longest pause after failures, unless the usual one is longer.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[object]],
        choose_pause: Callable[[], float],
        *,
        metrics: Metrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_retry_seconds: float = MAX_RETRY_SECONDS,
    ) -> None:
        self.name = name
        self._run_once = run_once
        self._choose_pause = choose_pause
        self._failures = metrics.counter_series(LOOP_FAILURES, name)
        self._sleep = sleep
        self._max_retry_seconds = max_retry_seconds
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self, first_pause_seconds: float | None = None) -> None:
        """Starts the loop with a pause: the usual one, or `first_pause_seconds`."""
        pause = self._choose_pause() if first_pause_seconds is None else first_pause_seconds
        self._task = asyncio.create_task(self._run_forever(pause))  # noqa: TID251 - ended by aclose

    async def aclose(self) -> None:
        """Ends the loop."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def is_dead(self) -> bool:
        """Whether the loop has ended although nobody has closed it."""
        return self._task is not None and self._task.done() and not self._is_closing

    async def _run_forever(self, pause: float) -> None:
        failures = 0
        if pause:
            await self._sleep(pause)
        while True:
            try:
                await self._run_once()
                failures = 0
            # Whatever the work raises, the next run may succeed.
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                failures += 1
                self._failures.inc()
                # An error that may pass by itself, such as an unavailable store, needs no traceback.
                trace = None if getattr(error, "retryable", False) else error
                log.error(
                    "the background loop %r failed %d times in a row: %s",
                    *(self.name, failures, type(error).__name__ if trace else error),
                    exc_info=trace,
                )
            usual = self._choose_pause()
            longest = max(usual, self._max_retry_seconds)
            await self._sleep(min(usual * 2 ** min(failures, MAX_DOUBLINGS), longest))
