"""Reads requests straight from ASGI: headers, the body up to a limit, and whether the client has disconnected.

The bodies that the process holds at once are bounded, too: without that a few large bodies, each within its own limit,
end the process for all tenants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import InvalidRequest, Overloaded, RequestTooLarge
from app.upstream.http.decompression import ENCODINGS, Decompressor, NotCompressedAsAnnounced

HELD_BODY: Final = "concertina.held_body"
"""Key of a request's body in its ASGI scope."""
UNKNOWN_SENDER: Final = ""
"""Stands for all senders together whose credential is checked only after the body is read."""
RETRY_AFTER_SECONDS: Final = 2.0


class BodyBudget:
    """The bytes of all bodies in flight, from their first byte to the end of their request.

    One sender holds at most half, but always one body of the largest size: its bodies never keep out those of others.

    Args:
        limit_bytes: for all senders together. 0: no limit.
        body_limit_bytes: the largest body.
    """

    def __init__(self, limit_bytes: int, body_limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sender_limit_bytes = max(limit_bytes // 2, body_limit_bytes)
        self._held_bytes = 0
        self._sender_bytes: dict[str, int] = {}

    def reserve(self, sender: str, size: int) -> None:
        """Counts `size` more bytes.

        Raises:
            Overloaded: there is no room for them.
        """
        held_bytes = self._held_bytes + size
        sender_bytes = self._sender_bytes.get(sender, 0) + size
        if self._limit_bytes and (held_bytes > self._limit_bytes or sender_bytes > self._sender_limit_bytes):
            raise Overloaded(
                "The gateway holds as many bytes of request bodies as it may, of all clients or of this one.",
                hint="Try again, or raise `limits.max_concurrent_body_bytes`.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._held_bytes = held_bytes
        self._sender_bytes[sender] = sender_bytes

    def release(self, sender: str, size: int) -> None:
        """Counts `size` fewer bytes."""
        self._held_bytes -= size
        left_bytes = self._sender_bytes.pop(sender, 0) - size
        if left_bytes:
            self._sender_bytes[sender] = left_bytes


class HeldBody(msgspec.Struct, eq=False):
    """A body that is being read, or is in use. Whoever makes it releases its bytes when its request ends.

    Attributes:
        budget: counts the bytes of all bodies.
        sender: a tenant.
        size: how many bytes are counted for it.
    """

    budget: BodyBudget
    sender: str
    size: int = 0

    def grow_to(self, size: int) -> None:
        """Counts the body with `size` bytes, if it is counted with fewer.

        Raises:
            Overloaded: there is no room for it.
        """
        if size > self.size:
            self.budget.reserve(self.sender, size - self.size)
            self.size = size


class ClientDisconnected(Exception):
    """The client hung up before its request was complete."""


BODY_HEADERS: Final = frozenset({"content-length", "content-encoding"})
"""Headers that decide how a body is read."""
_HEADERS_OF_COMPRESSED_BODIES: Final = (b"content-encoding", b"content-length")


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
        RequestTooLarge: the body is larger than the limit, or becomes so when it is decompressed.
        InvalidRequest: the body is not compressed as its headers say, or in a way that is not known.
        Overloaded: all bodies in flight together have too many bytes.
        ClientDisconnected: the client disconnected before the body was complete.
    """
    scope[HELD_BODY].sender = tenant
    body = await _receive_body(receive)
    if body is None:
        raise ClientDisconnected
    return body


async def _receive_body(receive: Receive) -> bytes | None:
    """Returns the whole body; None if the client disconnected before it was complete."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
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
async def cancel_on_disconnect(
    receive: Receive, on_disconnect: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """Cancels the body of the `async with` block when the client disconnects; the block then ends without an error.
    Enter it after the request's body is read: nobody else may call `receive` meanwhile.

    Args:
        on_disconnect: called before the block is cancelled.
    """
    try:
        # A timeout that is set to "now" cancels this task once, and tells its own cancellation from the server's.
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(_watch(receive, limit, on_disconnect))  # noqa: TID251 - cancelled below
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise  # a TimeoutError of the block itself


async def _watch(receive: Receive, limit: asyncio.Timeout, on_disconnect: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_disconnect()
    limit.reschedule(asyncio.get_running_loop().time())


class BodyLimitMiddleware:
    """Counts the body of each request, and decompresses it. Whoever reads a body gets the error that refuses it:
    `RequestTooLarge` for more than `limit_bytes`, at once if the length is announced; `Overloaded` if all bodies in
    flight have too many bytes; `InvalidRequest` if it cannot be decompressed."""

    def __init__(self, app: ASGIApp, limit_bytes: int, budget: BodyBudget) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw_headers = dict(scope["headers"])
        announced = raw_headers.get(b"content-length", b"")
        announced_bytes = int(announced) if announced.isdigit() else 0
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            if size < announced_bytes:
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

        held_body = scope[HELD_BODY] = HeldBody(self._budget, UNKNOWN_SENDER)
        try:
            encoding = raw_headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
            if encoding in ("", "identity"):
                await self._app(scope, receive_counted, send)
                return
            # Whoever reads the request reads it as if it had come like this.
            headers = [(name, value) for name, value in scope["headers"] if name not in _HEADERS_OF_COMPRESSED_BODIES]
            is_read = False

            async def receive_decompressed() -> Message:
                nonlocal is_read
                if is_read:
                    return await receive_counted()
                body = await _receive_body(receive_counted)
                is_read = True
                if body is None:
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": await self._decompress(body, encoding, held_body)}

            await self._app({**scope, "headers": headers}, receive_decompressed, send)
        finally:
            self._budget.release(held_body.sender, held_body.size)

    async def _decompress(self, body: bytes, encoding: str, held_body: HeldBody) -> bytes:
        """Decompresses a body in a thread, a step at a time: each is counted before the next is made."""
        if encoding not in ENCODINGS:
            raise InvalidRequest(
                f"The Content-Encoding {encoding!r} is not known: send {', '.join(sorted(ENCODINGS))}, or none."
            )
        decompressor = Decompressor(encoding)
        steps = decompressor.decompress(body)
        pieces: list[bytes] = []
        size = 0
        try:
            while (piece := await asyncio.to_thread(next, steps, None)) is not None:
                size += len(piece)
                self._check_size(size)
                held_body.grow_to(len(body) + size)
                pieces.append(piece)
        except NotCompressedAsAnnounced as error:
            raise InvalidRequest(f"The body is not compressed as its Content-Encoding says ({encoding}).") from error
        if not decompressor.is_complete:
            raise InvalidRequest(f"The body breaks off: it is the beginning of a text compressed as {encoding}.")
        return b"".join(pieces)

    def _check_size(self, size: int) -> None:
        if size > self._limit_bytes:
            raise RequestTooLarge(
                f"The request body is larger than {self._limit_bytes} bytes.",
                hint="Raise `server.body_limit_bytes` to allow it.",
            )
