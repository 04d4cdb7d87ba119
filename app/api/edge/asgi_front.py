"""The outermost ASGI application: sends chat completions and probes straight to their endpoints, and all other requests
to FastAPI. Checks the headers of every request but the probes.

FastAPI's routing, exception wrappers and middleware take an eighth of a whole request, and the chat endpoint maps its
own errors and makes its own request ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from app.api.edge.error_responses import build_error_response
from app.api.edge.header_checks import HeaderChecks
from app.api.edge.headers import RequestIdMiddleware
from app.errors import GatewayError

CHAT_PATH: Final = "/v1/chat/completions"


class AsgiFront:
    """An ASGI application that chooses who answers a request.

    Args:
        chat: answers `POST /v1/chat/completions`.
        application: answers all other paths.
        header_checks: checks the headers of a request.
        probes: the routes of the health probes by path, for `GET`. Their headers are not checked: load balancers and
            kubelets send any `Host`, and the answers hold nothing secret.
        lifespan: what runs while the server serves.
        new_request_id: makes the id of a request, in visible ASCII.
    """

    def __init__(
        self,
        chat: ASGIApp,
        application: ASGIApp,
        *,
        header_checks: HeaderChecks,
        probes: Mapping[str, Route],
        lifespan: Lifespan[Any],
        new_request_id: Callable[[], str],
    ) -> None:
        self.chat = chat
        self.application = application
        self._heads = header_checks
        self._new_request_id = new_request_id
        self._probes = probes
        self._lifespan = Router(lifespan=lifespan).lifespan

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._select_app(scope)(scope, receive, send)

    def _select_app(self, scope: Scope) -> ASGIApp:
        if scope["type"] == "lifespan":
            return self._lifespan
        probe = self._probes.get(scope["path"])
        if probe is not None:
            if scope.get("method") != "GET":
                return self.application  # FastAPI answers 405 with the allowed methods
            scope["route"] = probe  # read by the telemetry, as it reads the route that FastAPI sets
            return probe.app
        fault = self._heads.find_fault(scope["headers"])
        if fault is not None:
            return self._build_refusal(fault, scope)
        return self.chat if is_chat_completion_request(scope) else self.application

    def _build_refusal(self, fault: GatewayError, scope: Scope) -> ASGIApp:
        headers = {"x-context-status": "bypassed"} if is_chat_completion_request(scope) else {}
        return RequestIdMiddleware(build_error_response(fault, headers), self._new_request_id)


def is_chat_completion_request(scope: Scope) -> bool:
    """Returns whether a request asks for a chat completion."""
    return bool(scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST")
