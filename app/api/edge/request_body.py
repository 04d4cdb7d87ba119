"""Read a request body within its limit, straight from ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope

from app.errors import InvalidRequest, RequestTooLarge


class ClientDisconnected(Exception):
    """The client hung up before its request was complete."""


LENGTH_HEADERS: Final = frozenset({"content-length", "content-encoding"})
"""What `read_body` looks at."""


def headers_among(scope: Scope, names: Mapping[bytes, str]) -> dict[str, str]:
    """As `headers_of`, of these alone: clients send a dozen that nobody reads.

    Args:
        names: lower case, by their bytes.
    """
    return _join([(names[name], value.decode("latin-1")) for name, value in scope["headers"] if name in names])


def headers_of(scope: Scope) -> dict[str, str]:
    """Header values by lower-case name. Every path reads headers by this: the values of one that stands more than once
    are joined by commas (RFC 9110, 5.3). Where that would mean something else, `request_heads` has refused it."""
    return _join([(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]])


def _join(headers: list[tuple[str, str]]) -> dict[str, str]:
    once = dict(headers)
    if len(once) == len(headers):
        return once
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
    return {name: ", ".join(values) for name, values in lists.items()}


async def read_body(receive: Receive, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        RequestTooLarge: it is longer than `limit_bytes`.
        ClientDisconnected: it did not arrive whole.
    """
    announced = headers.get("content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
        raise InvalidRequest("Request bodies must not be compressed: send them without Content-Encoding.")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def _too_large(limit_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request body is larger than {limit_bytes} bytes.", hint="Raise `server.body_limit_bytes` to allow it."
    )
