"""Whether a client is still there, and what becomes of its request when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from app.api.edge.connections import RequestCycle


def has_disconnected(receive: Receive) -> bool:
    """Whether a client has hung up, as far as that is known: asks for its next message without waiting for it. (To be
    asked at all makes a server read on that had paused.) To be called once its request's body is read."""
    cycle = getattr(receive, "__self__", None)
    if isinstance(cycle, RequestCycle):
        return cycle.has_disconnected()
    while True:
        asking = receive().__await__()
        try:
            next(asking)
        except StopIteration as answered:
            if answered.value["type"] == "http.disconnect":
                return True
        else:
            asking.close()
            return False


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels what runs inside when the client hangs up; it then ends without an error. To be entered once the body of
    the request is read: nobody else may receive meanwhile."""
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(_expire_on_disconnect(receive, limit))  # noqa: TID251 - cancelled below
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise


async def _expire_on_disconnect(receive: Receive, limit: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(asyncio.get_running_loop().time())
