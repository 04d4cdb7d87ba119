"""Whether a client is still there, for whoever has no time to wait for the answer."""

from __future__ import annotations

from starlette.types import Receive

from app.api.cycles import Cycle


def has_left(receive: Receive) -> bool:
    """Whether a client has hung up, as far as that is known: asks for its next message without waiting for it. (To be
    asked at all makes a server read on that had paused.) To be called once its request's body is read."""
    cycle = getattr(receive, "__self__", None)
    if isinstance(cycle, Cycle):
        return cycle.has_left()
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
