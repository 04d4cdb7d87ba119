"""Reads requests straight from ASGI: headers, the body up to a limit, and whether the client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.edge.body_budget import HELD_BODY, UNKNOWN_SENDER, BodyBudget
from app.errors import InvalidRequest, RequestTooLarge


class ClientDisconnected(Exception):
    """The client hung up before its request was complete."""


BODY_HEADERS: Final = frozenset({"content-length", "content-encoding"})
"""Headers that decide how a body is read."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Returns header values by lower-case name. Every path reads headers with this function, so that all read the same.
    Values of a repeated header are joined by commas (RFC 9110, 5.3); headers for which that would be wrong have been
    refused by `header_checks`."""
    lists: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        lists.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in lists.items()}


async def read_body(scope: Scope, receive: Receive, tenant: str) -> bytes:
    """Reads the whole request body, within the limits of `BodyLimitMiddleware`. It is counted for the tenant.

    Raises:
        RequestTooLarge: the body is larger than the limit.
        InvalidRequest: the body is compressed.
        Overloaded: all bodies in flight together have too many bytes.
        ClientDisconnected: the client disconnected before the body was complete.
    """
    scope[HELD_BODY].sender = tenant
    if read_headers(scope).get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("Request bodies must not be compressed: send them without Content-Encoding.")
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def has_disconnected(receive: Receive) -> bool:
    """Returns whether the client has disconnected, as far as the server knows. Reads the server's next message without
    waiting. To be called after the request's body is read. As a side effect, a server that had paused reading resumes.
    """
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


class BodyLimitMiddleware:
    """Counts the body of each request. Whoever reads a body gets the error that refuses it: `RequestTooLarge` for more
    than `limit_bytes`, at once if the length is announced; `Overloaded` if all bodies in flight have too many bytes."""

    def __init__(self, app: ASGIApp, limit_bytes: int, budget: BodyBudget) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"")
        announced_bytes = int(announced) if announced.isdigit() else 0
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            self._check_size(announced_bytes)
            # All of it now: bodies that are read side by side would otherwise keep each other from their ends. What
            # comes without a credential is counted as it comes, or announcements alone would take all room.
            if held_body.sender != UNKNOWN_SENDER:
                held_body.grow_to(announced_bytes)
            message = await receive()
            size += len(message.get("body", b""))
            self._check_size(size)
            held_body.grow_to(size)
            return message

        with self._budget.hold_body(UNKNOWN_SENDER) as held_body:
            scope[HELD_BODY] = held_body
            await self._app(scope, receive_counted, send)

    def _check_size(self, size: int) -> None:
        if size > self._limit_bytes:
            raise RequestTooLarge(
                f"The request body is larger than {self._limit_bytes} bytes.",
                hint="Raise `server.body_limit_bytes` to allow it.",
            )
