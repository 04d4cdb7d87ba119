"""Tasks that outlive their request. They are finished or cancelled before the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundTasks:
    """Owns background tasks from their start to their end."""

    def __init__(self) -> None:
        self._running_tasks: set[asyncio.Task[Any]] = set()

    @property
    def running_count(self) -> int:
        """How many tasks are running."""
        return len(self._running_tasks)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Starts a task that goes on if its caller is cancelled."""
        task = asyncio.create_task(work)  # noqa: TID251 - owned until aclose
        # asyncio keeps only weak references to tasks: without this one, the task could be garbage-collected while it
        # runs.
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)
        return task

    def run_shielded(self, work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        """Runs work to its end in a task of its own. If who awaits the result is cancelled, the cancellation is raised
        at once and the work goes on."""
        return asyncio.shield(self.spawn(work))

    async def run_shielded_to_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs work to its end. If the caller is cancelled during the work, the cancellation is raised after the
        work."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await wait_until_done(task)
            raise

    async def aclose(self, timeout_seconds: float) -> None:
        """Waits for the running tasks, then cancels those that are left after `timeout_seconds`."""
        if self._running_tasks:
            _, late = await asyncio.wait(self._running_tasks, timeout=timeout_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def wait_until_done(future: asyncio.Future[Any]) -> asyncio.Future[None]:
    """Waits until work has ended, with whatever result. If the caller is cancelled, the work goes on."""
    # A future of its own: awaiting the work itself would pass the caller's cancellation on to the work.
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if future.done():
        waiter.set_result(None)
    else:
        future.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
    return waiter
