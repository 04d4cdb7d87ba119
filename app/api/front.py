"""What stands before the framework: the hot path goes straight to its endpoint, everything else through FastAPI.

Routing, exception wrappers and middleware of the framework cost an eighth of a whole request, and the chat endpoint
maps its own errors and names its own requests.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.sending import Sending, count
from app.observability.metrics import OTHER, SILENT, Metrics

CHAT_PATH: Final = "/v1/chat/completions"


class Front:
    """An ASGI application: `POST /v1/chat/completions` is `chat`'s, the rest is `application`'s."""

    def __init__(self, chat: ASGIApp, application: FastAPI, metrics: Metrics = SILENT) -> None:
        self._chat = chat
        self._metrics = metrics
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST":
            await self._chat(scope, receive, send)
        elif scope["type"] == "http" and self._metrics.is_on:
            await self._counted(scope, receive, send)
        else:
            await self.application(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The chat endpoint counts for itself."""
        metrics = self._metrics
        began = metrics.now()
        sending = Sending(send, metrics.now)
        try:
            await self.application(scope, receive, sending)
        finally:
            count(metrics, getattr(scope.get("route"), "path", OTHER), sending, began)
