"""What stands before the framework: the hot path goes straight to its endpoint, so do probes, the rest through FastAPI.

Routing, exception wrappers and middleware of the framework cost an eighth of a whole request, and the chat endpoint
maps its own errors and names its own requests. Nor do they wait until the framework is loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from app.api.later import Later

CHAT_PATH: Final = "/v1/chat/completions"


class Front:
    """An ASGI application: `POST /v1/chat/completions` is `chat`'s, the rest is `application`'s.

    Args:
        probes: what `GET` is answered with for the paths that machines ask.
        lifespan: what is there while the server serves.
    """

    def __init__(
        self, chat: ASGIApp, application: Later, *, probes: Mapping[str, Route], lifespan: Lifespan[Any]
    ) -> None:
        self.chat = chat
        self.application = application
        self._probes = probes
        self._lifespan = Router(lifespan=lifespan).lifespan

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app_for(scope)(scope, receive, send)

    def _app_for(self, scope: Scope) -> ASGIApp:
        if asks_for_completion(scope):
            return self.chat
        if scope["type"] == "lifespan":
            return self._lifespan
        probe = self._probes.get(scope["path"])
        if probe is None or scope.get("method") != "GET":
            return self.application
        scope["route"] = probe
        return probe.app


def asks_for_completion(scope: Scope) -> bool:
    """Whether a request is one for a chat completion."""
    return bool(scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST")
