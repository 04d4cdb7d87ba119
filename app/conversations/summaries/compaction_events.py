"""A compaction under way, as its client sees it: events while it lasts, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from app.conversation.messages import Chunk

HEARTBEAT_SECONDS: Final = 5.0
"""Between two events of a compaction: the shortest client read timeout seen is 60 s."""


@dataclass(slots=True)
class Progress:
    """What its watcher is told of a compaction."""

    conversation_id: str
    seconds: Callable[[], float]
    ranges: int
    window: int
    input_tokens: int
    began: float
    done: int = 0
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    def started(self) -> None:
        told = {"input_tokens": self.input_tokens, "context_window": self.window, "ranges": self.ranges}
        self.events.put_nowait({"type": "compaction_started", "conversation_id": self.conversation_id, **told})

    def made(self, chunk: Chunk) -> None:
        self.done += 1
        self.ranges = max(self.ranges, self.done)
        told = {"from_seq": chunk.from_seq, "to_seq": chunk.to_seq, "tokens": chunk.tokens, "kind": chunk.kind}
        self.events.put_nowait({"type": "summary_completed", "id": chunk.id, **told, **self._so_far()})

    def waiting(self) -> dict[str, Any]:
        elapsed_ms = round((self.seconds() - self.began) * 1000)
        return {"type": "compaction_progress", "elapsed_ms": elapsed_ms, **self._so_far()}

    def _so_far(self) -> dict[str, int]:
        return {"done": self.done, "ranges": self.ranges}


class Compaction:
    """A compaction under way. That its client hangs up does not end it."""

    def __init__(self, task: asyncio.Task[dict[str, Any]], progress: Progress) -> None:
        self._task = task
        self._progress = progress
        task.add_done_callback(self._ended)

    def on_end(self, do: Callable[[], None]) -> None:
        """Have something done once the work is over, however it ended."""
        self._task.add_done_callback(lambda _: do())

    async def result(self) -> dict[str, Any]:
        """The object that tells of it.

        Raises:
            GatewayError: it failed.
        """
        return await asyncio.shield(self._task)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """What happens, as it happens, and something every few seconds; at last the object that tells of it.

        Raises:
            GatewayError: it failed.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    event = await self._progress.events.get()
            except TimeoutError:
                yield self._progress.waiting()
                continue
            if event is None:
                break
            yield event
        yield {"type": "compaction_completed", **await self.result()}

    def _ended(self, task: asyncio.Task[dict[str, Any]]) -> None:
        if not task.cancelled():
            task.exception()
        self._progress.events.put_nowait(None)
