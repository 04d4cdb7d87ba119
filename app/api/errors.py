"""Errors → HTTP. Every path and status answers with OpenAI's error body and says whether a retry can help."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.allowed import methods_of
from app.api.body import ClientDisconnected
from app.api.request_ids import REQUEST_ID
from app.errors import (
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
    StoreUnreadable,
    UpstreamRefused,
)
from app.observability.requests import note_error

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 1
"""With an error of ours that passes by itself and does not say when."""
WAITS: Final = (409, 503)
CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status for a client that is gone; it is told in numbers and logs alone."""

CODES: Final = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
"""What the framework calls a fault → OpenAI's code for it; others are `invalid_type` or `invalid_value`."""


def error_headers(error: GatewayError) -> dict[str, str]:
    """Headers that belong to an error: its own, and whether a retry can mend it."""
    if isinstance(error, UpstreamRefused):
        return dict(error.headers)
    headers = {"allow": ", ".join(error.allowed)} if isinstance(error, MethodNotAllowed) and error.allowed else {}
    pause_seconds = error.retry_after_seconds
    if pause_seconds is None and error.retryable and error.status in WAITS:
        pause_seconds = RETRY_AFTER_SECONDS
    if pause_seconds is not None:
        headers["retry-after"] = str(max(1, math.ceil(pause_seconds)))
    if not error.retryable and (error.status < 500 or isinstance(error, StoreUnreadable)):
        headers["x-should-retry"] = "false"
    return headers


def error_body(error: GatewayError) -> bytes:
    """The body of an error answer; an upstream's own passes unchanged."""
    return error.raw_body if isinstance(error, UpstreamRefused) else orjson.dumps(error.body())


def error_response(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    """A whole error answer."""
    combined = {"content-type": "application/json", **error_headers(error), **(headers or {})}
    return Response(error_body(error), status_code=error.status, headers=combined)


def unexpected(error: Exception, request_id: str) -> InternalError:
    """An error nobody foresaw: logged with its trace, told without."""
    log.error("request %s failed unexpectedly", request_id, exc_info=error)
    return InternalError("The gateway failed to handle this request. The fault is logged with its request id.")


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the application answer in OpenAI's shape, and note it."""

    def told(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
        note_error(error)
        return error_response(error, headers)

    async def gateway(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return told(error)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return told(_from_status(error.status_code, request))

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return told(InvalidRequest(f"The request body is not valid JSON: {first['ctx']['error']}."))
        param = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        message = f"{param or 'The request'}: {first['msg']}."
        return told(InvalidRequest(message, code=_code_of(first), param=param or None))

    async def anything(request: Request, error: Exception) -> Response:
        request_id = str(request.scope.get(REQUEST_ID, ""))
        return told(unexpected(error, request_id), {"x-request-id": request_id})

    async def hung_up(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(GatewayError, gateway)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(ClientDisconnected, hung_up)
    app.add_exception_handler(Exception, anything)


def _code_of(fault: Mapping[str, Any]) -> str:
    kind = str(fault["type"])
    if kind == "too_long" and fault["ctx"].get("field_type") == "List":
        return "array_above_max_length"
    return CODES.get(kind, "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value")


def _from_status(status: int, request: Request) -> GatewayError:
    path = request.url.path
    if status == 404:
        return NotFound(f"Unknown path {path!r}.", hint="See /docs for what there is.")
    if status == 405:
        allowed = methods_of(request.app.routes, request.scope)
        return MethodNotAllowed(f"{request.method} is not allowed for {path!r}.", allowed=allowed)
    if status == 413:
        return RequestTooLarge("The request body is larger than `server.body_limit_bytes` allows.")
    error = InvalidRequest(f"The request could not be handled (status {status}).")
    error.status = status
    return error
