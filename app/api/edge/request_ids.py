"""Adds headers that every answer must have: `X-Request-Id`, `X-Content-Type-Options: nosniff`, and below `/v1`
`Cache-Control: no-store`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_SCOPE_KEY: Final = "request_id"
"""Key of a request's id in its ASGI scope."""
_REQUEST_ID_HEADER: Final = b"x-request-id"
_UNCACHED_PREFIX: Final = "/v1/"
_NO_STORE_HEADER: Final = (b"cache-control", b"no-store")
_NOSNIFF_HEADER: Final = (b"x-content-type-options", b"nosniff")


class RequestIdMiddleware:
    """Makes an id for each request, and adds to its answer those headers of this module that the answer lacks: the id,
    `nosniff`, and below `/v1` `no-store`. An answer from a provider may have an id already.

    Args:
        new_request_id: makes the id of a request, in visible ASCII.
    """

    def __init__(self, app: ASGIApp, new_request_id: Callable[[], str]) -> None:
        self._app = app
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID_SCOPE_KEY] = self._new_request_id()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                message["headers"] = [*headers, *_select_missing_headers({name.lower() for name, _ in headers}, scope)]
            await send(message)

        await self._app(scope, receive, send_named)


def _select_missing_headers(names: set[bytes], scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    """Yields the headers that an answer lacks.

    Args:
        names: the names of the headers that it has, in lower case.
    """
    if _REQUEST_ID_HEADER not in names:
        yield _REQUEST_ID_HEADER, scope[REQUEST_ID_SCOPE_KEY].encode()
    if _NOSNIFF_HEADER[0] not in names:
        yield _NOSNIFF_HEADER
    if _NO_STORE_HEADER[0] not in names and scope["path"].startswith(_UNCACHED_PREFIX):
        yield _NO_STORE_HEADER
