"""Turns every exception of FastAPI's routes into OpenAI's error body: FastAPI's errors, the gateway's, unexpected
ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.edge.error_responses import CLIENT_CLOSED_REQUEST, build_error_response, log_unexpected_error
from app.api.edge.headers import REQUEST_ID_SCOPE_KEY
from app.api.edge.request_reader import ClientDisconnected, read_headers
from app.api.edge.unknown_paths import find_allowed_methods, unknown_path_error
from app.errors import GatewayError, InvalidRequest, MethodNotAllowed, drop_tracebacks
from app.observability.request_record import record_error

VALIDATION_ERROR_CODES: Final = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
"""OpenAI's error code by pydantic's error type. Other types become `invalid_type` or `invalid_value`."""


def install_error_handlers(app: FastAPI, *, passes_on: bool) -> None:
    """Installs handlers that answer every error of the application with OpenAI's body and record it.

    Args:
        passes_on: whether a provider gets the paths below `/v1` that the gateway does not have.
    """

    async def gateway(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return build_error_response(error, request.scope)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # FastAPI reports any error while it reads a body as this one: `BodyLimitMiddleware` refused the body.
        refusal = error.__cause__
        drop_tracebacks(error)
        if isinstance(refusal, GatewayError):
            return build_error_response(refusal, request.scope)
        return build_error_response(
            _build_error_for_status(error.status_code, request, passes_on=passes_on), request.scope
        )

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        drop_tracebacks(error)
        first_error = error.errors()[0]  # OpenAI's body has room for one `param`
        if first_error["type"] == "json_invalid":
            return build_error_response(
                InvalidRequest(f"The request body is not valid JSON: {first_error['ctx']['error']}."), request.scope
            )
        if isinstance(first_error.get("input"), bytes):
            return build_error_response(_build_content_type_error(request), request.scope)
        param = ".".join(str(part) for part in first_error["loc"] if part not in ("body", "query", "path"))
        message = f"{param or 'The request'}: {first_error['msg']}."
        return build_error_response(
            InvalidRequest(message, code=_map_validation_code(first_error), param=param or None), request.scope
        )

    async def anything(request: Request, error: Exception) -> Response:
        # Starlette sends this answer from outside of all middleware, so the request id is added here.
        request_id = str(request.scope.get(REQUEST_ID_SCOPE_KEY, ""))
        return build_error_response(
            log_unexpected_error(error, request_id), request.scope, {"x-request-id": request_id}
        )

    async def hung_up(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_middleware(BrokenResponseMiddleware)
    app.add_exception_handler(GatewayError, gateway)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(ClientDisconnected, hung_up)
    app.add_exception_handler(Exception, anything)


class BrokenResponseMiddleware:
    """Handles a GatewayError that is raised after the response has begun, such as a provider that breaks off.

    The status is already sent. The error is recorded, and the connection closes before the response is complete, so
    that the client sees that something is missing. Without this class Starlette would log an unexpected error.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except RuntimeError as error:
            # Starlette raises a RuntimeError from the error whose handler it cannot use any more: the response has
            # begun.
            if not isinstance(error.__cause__, GatewayError):
                raise
            record_error(error.__cause__)


def _build_content_type_error(request: Request) -> InvalidRequest:
    """Builds the error for a body that FastAPI did not read as JSON, and gave to the endpoint as bytes."""
    sent = read_headers(request.scope).get("content-type")
    problem = f"is {sent!r}" if sent else "is missing"
    return InvalidRequest(
        f"The header `Content-Type` {problem}.", code="invalid_type", hint="Send `Content-Type: application/json`."
    )


def _map_validation_code(validation_error: Mapping[str, Any]) -> str:
    kind = str(validation_error["type"])
    if kind == "too_long" and validation_error["ctx"].get("field_type") == "List":
        return "array_above_max_length"
    return VALIDATION_ERROR_CODES.get(kind, "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value")


def _build_error_for_status(status: int, request: Request, *, passes_on: bool) -> GatewayError:
    path = request.url.path
    if status == 404:
        return unknown_path_error(path, passes_on=passes_on)
    if status == 405:
        allowed = find_allowed_methods(request.app.routes, request.scope)
        return MethodNotAllowed(f"{request.method} is not allowed for {path!r}.", allowed=allowed)
    return InvalidRequest(f"The request could not be handled (status {status}).", status=status)
