"""Reads requests straight from ASGI: headers, the body up to a limit, and whether the client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.edge.body_budget import HELD_BODY, UNKNOWN_SENDER, BodyBudget, HeldBody
from app.api.edge.error_responses import build_error_response
from app.errors import GatewayError, InvalidRequest, RequestTooLarge, drop_tracebacks
from app.observability.request_facts import record_error


class ClientDisconnected(Exception):
    """The client hung up before its request was complete."""


BODY_HEADERS: Final = frozenset({"content-length", "content-encoding"})
"""Headers that `read_body` reads."""


def read_selected_headers(scope: Scope, names: Mapping[bytes, str]) -> dict[str, str]:
    """Returns the values of selected headers, as `read_headers` does. It is faster: clients send a dozen other headers.

    Args:
        names: lower-case names by their bytes.
    """
    headers = [(names[name], value.decode("latin-1")) for name, value in scope["headers"] if name in names]
    values = dict(headers)
    return values if len(values) == len(headers) else _join_repeated_headers(headers)


def read_headers(scope: Scope) -> dict[str, str]:
    """Returns header values by lower-case name. Every path reads headers with this function, so that all read the same.
    Values of a repeated header are joined by commas (RFC 9110, 5.3); headers for which that would be wrong have been
    refused by `header_checks`."""
    return _join_repeated_headers(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    )


def _join_repeated_headers(headers: list[tuple[str, str]]) -> dict[str, str]:
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
    return {name: ", ".join(values) for name, values in lists.items()}


async def read_body(receive: Receive, headers: Mapping[str, str], limit_bytes: int, held_body: HeldBody) -> bytes:
    """Reads the whole request body.

    Raises:
        RequestTooLarge: the body is longer than `limit_bytes`.
        InvalidRequest: the body is compressed.
        Overloaded: all bodies in flight together have too many bytes.
        ClientDisconnected: the client disconnected before the body was complete.
    """
    # Refused before anything is read. A chunked body announces no length and is counted as it comes.
    announced = headers.get("content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large_error(limit_bytes)
    if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
        raise InvalidRequest("Request bodies must not be compressed: send them without Content-Encoding.")
    # All of it now: bodies that are read side by side would otherwise keep each other from their ends.
    if announced is not None and announced.isdigit():
        held_body.grow_to(int(announced))
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit_bytes:
            raise _too_large_error(limit_bytes)
        held_body.grow_to(size)
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def _too_large_error(limit_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request body is larger than {limit_bytes} bytes.", hint="Raise `server.body_limit_bytes` to allow it."
    )


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
    """Answers 413 to a body of more than `limit_bytes`: at once if its length is announced, else when it is reached;
    and 503 if all bodies in flight together have too many bytes.

    FastAPI reports any error while it reads a body as a malformed body. So its reader gets a disconnect, FastAPI's
    answer to that is discarded, and the error is sent in its place.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int, budget: BodyBudget) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = read_headers(scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit_bytes:
            await _send_error(_too_large_error(self._limit_bytes), scope, receive, send)
            return
        with self._budget.hold_body(UNKNOWN_SENDER) as held_body:
            scope[HELD_BODY] = held_body
            reading = _LimitedReceiver(receive, self._limit_bytes, held_body)

            async def send_unless_refused(message: Message) -> None:
                if reading.error is None or reading.has_response_started:
                    reading.has_response_started = True
                    await send(message)

            await self._app(scope, reading.receive, send_unless_refused)
            if reading.error is not None and not reading.has_response_started:
                await _send_error(reading.error, scope, receive, send)


async def _send_error(error: GatewayError, scope: Scope, receive: Receive, send: Send) -> None:
    record_error(error, replaces=True)  # FastAPI's discarded answer has recorded an error
    await build_error_response(error)(scope, receive, send)


class _LimitedReceiver:
    """Receives a body and ends it with a disconnect when it is longer than the limit, or there is no room for it."""

    def __init__(self, receive: Receive, limit_bytes: int, held_body: HeldBody) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._held_body = held_body
        self._size = 0
        self.error: GatewayError | None = None
        self.has_response_started = False
        """Whether a response has begun, which must then be completed."""

    async def receive(self) -> Message:
        if self.error is not None:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._size += len(message.get("body", b""))
        try:
            if self._size > self._limit_bytes:
                raise _too_large_error(self._limit_bytes)
            self._held_body.grow_to(self._size)
        except GatewayError as error:
            drop_tracebacks(error)
            self.error = error
            return {"type": "http.disconnect"}
        return message
