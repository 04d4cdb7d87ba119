"""The outermost ASGI application: sends model calls and probes straight to their endpoints, and all other requests to
FastAPI. Checks the headers of every request but the probes.

FastAPI's routing, exception wrappers and middleware take an eighth of a whole request, and the endpoints of model calls
map their own errors and make their own request ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from app.api.edge.error_responses import build_error_response
from app.api.edge.header_checks import HeaderChecks
from app.api.edge.headers import RequestIdMiddleware

CHAT_PATH: Final = "/v1/chat/completions"
RESPONSES_PATH: Final = "/v1/responses"


class AsgiFront:
    """An ASGI application that chooses who answers a request.

    Args:
        model_calls: what answers a `POST`, by path.
        application: answers all other paths.
        header_checks: checks the headers of a request.
        probes: the routes of the health probes by path, for `GET`. Their headers are not checked: load balancers and
            kubelets send any `Host`, and the answers hold nothing secret.
        lifespan: what runs while the server serves.
        new_request_id: makes the id of a request, in visible ASCII.
    """

    def __init__(
        self,
        model_calls: Mapping[str, ASGIApp],
        application: ASGIApp,
        *,
        header_checks: HeaderChecks,
        probes: Mapping[str, Route],
        lifespan: Lifespan[Any],
        new_request_id: Callable[[], str],
    ) -> None:
        self._model_calls = model_calls
        self.application = application
        self._heads = header_checks
        self._new_request_id = new_request_id
        self._probes = probes
        self._lifespan = Router(lifespan=lifespan).lifespan

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "lifespan":
            return self._lifespan(scope, receive, send)
        probe = self._probes.get(scope["path"])
        if probe is not None and scope.get("method") == "GET":
            scope["route"] = probe  # read by the telemetry, as it reads the route that FastAPI sets
            return probe.app(scope, receive, send)
        # FastAPI answers 405 to other methods of a probe, with the allowed ones.
        fault = None if probe is not None else self._heads.find_fault(scope["headers"])
        endpoint = self._model_calls.get(scope["path"])
        if endpoint is not None and (scope["type"] != "http" or scope["method"] != "POST"):
            endpoint = None
        if fault is not None:
            # A refused model call says, as all its answers do, what was done with its conversation.
            refusal = build_error_response(fault, {} if endpoint is None else {"x-context-status": "bypassed"})
            return RequestIdMiddleware(refusal, self._new_request_id)(scope, receive, send)
        return (endpoint or self.application)(scope, receive, send)
