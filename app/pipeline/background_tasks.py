"""Work that outlives the request it began in, and is finished or cancelled before the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundTasks:
    """Owns tasks from their start to their end."""

    def __init__(self) -> None:
        self._running_tasks: set[asyncio.Task[Any]] = set()

    @property
    def running_count(self) -> int:
        """How many there are."""
        return len(self._running_tasks)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start work whose caller may go away."""
        task = asyncio.create_task(work)  # noqa: TID251 - owned until aclose
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)
        return task

    def ensure_future(self, work: asyncio.Future[Result] | Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        """Work whose caller may go away: a future comes to its end by itself, a coroutine is given a task."""
        return work if isinstance(work, asyncio.Future) else self.spawn(work)

    async def run_shielded(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work to its end even when the caller is cancelled meanwhile."""
        return await asyncio.shield(self.spawn(work))

    async def run_shielded_to_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work to its end; a caller that is cancelled meanwhile is so when it has ended."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await wait_until_done(task)
            raise

    async def aclose(self, timeout_seconds: float) -> None:
        """Wait for what is running, then cancel what is left."""
        if self._running_tasks:
            _, late = await asyncio.wait(self._running_tasks, timeout=timeout_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


async def wait_until_done(future: asyncio.Future[Any]) -> None:
    """Wait until work has ended, whatever came of it. Who waits may be cancelled; the work goes on."""
    if future.done():
        return
    waiter = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
    await waiter
