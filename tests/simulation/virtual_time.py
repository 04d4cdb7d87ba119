"""An event loop whose clock jumps to the next timer, and runs what the application gives to threads in place."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from unittest.mock import patch

Result = TypeVar("Result")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Deadlock(Exception):
    """Every task waits for another task."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: moves the loop's clock instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        if timeout > 0:
            self.loop.seconds += timeout + 1e-9
        self.loop.run_step()
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`seconds` is the time since the loop began. `on_step`, if set, is called once in each round of the loop."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.seconds = 0.0
        self.on_step: Callable[[], None] | None = None
        super().__init__(selector)

    def run_step(self) -> None:
        if self.on_step is not None:
            self.on_step()

    def time(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        """Returns the time of day."""
        return START + timedelta(seconds=self.seconds)

    def run_in_executor(  # type: ignore[override]  # the arguments' types need not be tied together here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs the function at once: threads would make the order of events depend on the machine."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it raises belongs to the one who waits
            done.set_exception(error)
        return done


def run_in_virtual_time(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Runs `main` to its end on a new loop. `time.monotonic` is the loop's clock meanwhile.

    Raises:
        Deadlock: nothing can ever happen again, and `main` has not ended.
    """
    loop = VirtualTimeLoop()
    loop.set_exception_handler(lambda _loop, _context: None)  # a killed application leaves failed tasks behind
    try:
        with patch.object(time, "monotonic", loop.time):
            return loop.run_until_complete(main(loop))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
