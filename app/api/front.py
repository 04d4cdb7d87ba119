"""What stands before the framework: the hot path goes straight to its endpoint, everything else through FastAPI.

Routing, exception wrappers and middleware of the framework cost an eighth of a whole request, and the chat endpoint
maps its own errors and names its own requests.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

CHAT_PATH: Final = "/v1/chat/completions"


class Front:
    """An ASGI application: `POST /v1/chat/completions` is `chat`'s, the rest is `application`'s."""

    def __init__(self, chat: ASGIApp, application: FastAPI) -> None:
        self._chat = chat
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._chat if asks_for_completion(scope) else self.application)(scope, receive, send)


def asks_for_completion(scope: Scope) -> bool:
    """Whether a request is one for a chat completion."""
    return bool(scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST")
