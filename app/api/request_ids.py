"""Every answer carries an `X-Request-Id`, whichever path it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID: Final = "request_id"
"""Where a request's id is kept in its ASGI scope."""
_HEADER: Final = b"x-request-id"


class RequestIds:
    """Gives each request an id and puts it on the answer, unless that names one already (a provider's, passed on).

    Args:
        new_request_id: makes the id of a request; visible ASCII.
    """

    def __init__(self, app: ASGIApp, new_request_id: Callable[[], str]) -> None:
        self._app = app
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID] = self._new_request_id()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                if all(name.lower() != _HEADER for name, _ in headers):
                    message["headers"] = [*headers, (_HEADER, request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_named)
