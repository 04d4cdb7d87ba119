"""Detects that a client has disconnected, and cancels its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from app.api.edge.connections import RequestCycle


def has_disconnected(receive: Receive) -> bool:
    """Returns whether the client has disconnected, as far as the server knows. Reads the server's next message without
    waiting. To be called after the request's body is read. As a side effect, a server that had paused reading resumes.
    """
    cycle = getattr(receive, "__self__", None)
    if isinstance(cycle, RequestCycle):
        return cycle.has_disconnected()
    while True:
        # Runs `receive` up to its first suspension. If it suspends there is no message, so the client is connected.
        pending_receive = receive().__await__()
        try:
            next(pending_receive)
        except StopIteration as answered:
            if answered.value["type"] == "http.disconnect":
                return True
        else:
            pending_receive.close()
            return False


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels the body of the `async with` block when the client disconnects; the block then ends without an error.
    Enter it after the request's body is read: nobody else may call `receive` meanwhile."""
    try:
        # A timeout that is set to "now" cancels this task once, and tells its own cancellation from the server's.
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(_expire_on_disconnect(receive, limit))  # noqa: TID251 - cancelled below
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise  # a TimeoutError of the block itself


async def _expire_on_disconnect(receive: Receive, limit: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(asyncio.get_running_loop().time())
