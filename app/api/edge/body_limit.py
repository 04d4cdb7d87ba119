"""How large a request may be, for whatever the framework reads by itself. The chat endpoint stands before it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.edge.error_responses import error_response
from app.api.edge.request_body import headers_of
from app.errors import RequestTooLarge
from app.observability.request_facts import note_error


class BodyLimit:
    """Answers 413 to a body of more than `limit_bytes`: at once where its length is announced, else when it is reached.

    The framework would take an error raised while it reads a body for a malformed one, so what it answers to that is
    held back.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = headers_of(scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit_bytes:
            await self._refuse(scope, receive, send)
            return
        reading = _Reading(receive, self._limit_bytes)

        async def send_unless_refused(message: Message) -> None:
            if not reading.is_too_long or reading.has_begun:
                reading.has_begun = True
                await send(message)

        await self._app(scope, reading.receive, send_unless_refused)
        if reading.is_too_long and not reading.has_begun:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = RequestTooLarge(
            f"The request body is larger than {self._limit_bytes} bytes.",
            hint="Raise `server.body_limit_bytes` to allow it.",
        )
        note_error(refusal, instead=True)
        await error_response(refusal)(scope, receive, send)


class _Reading:
    """A body on its way in."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._left_bytes = limit_bytes
        self.is_too_long = False
        self.has_begun = False
        """Whether the answer is on its way out."""

    async def receive(self) -> Message:
        if self.is_too_long:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._left_bytes -= len(message.get("body", b""))
        if self._left_bytes < 0:
            self.is_too_long = True
            return {"type": "http.disconnect"}
        return message
