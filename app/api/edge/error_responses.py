"""Turns errors into HTTP responses: the error body of the client's protocol, and headers that say whether a retry can
help."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Scope

from app.api.edge.headers import REQUEST_ID_SCOPE_KEY, select_client_headers
from app.dialects.messages import errors as messages_errors
from app.errors import (
    GatewayError,
    InternalError,
    StoreUnreadable,
    UpstreamRefused,
    drop_tracebacks,
)
from app.observability.request_record import record_error

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 1
"""`Retry-After` of a retryable gateway error that has no time of its own."""
UPSTREAM_ONLY_HEADERS: Final = frozenset({"content-length", "request-id", "x-request-id"})
"""Headers of a provider's refusal that do not pass: the gateway's response has its own."""
RETRY_AFTER_STATUSES: Final = (409, 503)
CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status for a client that has disconnected; it appears in metrics and logs only."""


def build_error_headers(error: GatewayError) -> dict[str, str]:
    """Returns the headers of an error response: `Allow`, `Retry-After` and `X-Should-Retry` as far as they apply."""
    if isinstance(error, UpstreamRefused):
        # The provider knows best whether a retry helps, so its own headers pass and none are added.
        passed = select_client_headers(error.headers)
        return {name: value for name, value in passed.items() if name not in UPSTREAM_ONLY_HEADERS}
    headers = dict(error.response_headers)
    pause_seconds = error.retry_after_seconds
    if pause_seconds is None and error.retryable and error.status in RETRY_AFTER_STATUSES:
        pause_seconds = RETRY_AFTER_SECONDS
    if pause_seconds is not None:
        headers["retry-after"] = str(max(1, math.ceil(pause_seconds)))
    # OpenAI's SDKs retry 409, 429 and 5xx by themselves; this header stops them. Other 5xx may pass by themselves.
    if not error.retryable and (error.status < 500 or isinstance(error, StoreUnreadable)):
        headers["x-should-retry"] = "false"
    return headers


def speaks_messages(scope: Scope) -> bool:
    """Says whether a request comes from a client of the Messages API: by its path, or by the header that names the
    API's version."""
    parts = [part for part in scope["path"].split("/") if part not in ("", "v1")]
    return parts[:1] == ["messages"] or any(name == b"anthropic-version" for name, _ in scope["headers"])


def build_error_body(error: GatewayError, scope: Scope | None = None) -> bytes:
    """Returns the body of an error response, in the form of the client's protocol; a provider's own error body in this
    form passes unchanged.

    Args:
        scope: the request's scope; None if the request was not read.
    """
    if scope is not None and speaks_messages(scope):
        return messages_errors.build_error_body(error, str(scope.get(REQUEST_ID_SCOPE_KEY, "")))
    if isinstance(error, UpstreamRefused):
        return messages_errors.translate_error_body(error.raw_body)
    return orjson.dumps(error.build_body())


def build_error_response(error: GatewayError, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """Builds an error response, and records the error for metrics and the log line."""
    record_error(error)
    drop_tracebacks(error)
    combined = {"content-type": "application/json", **build_error_headers(error), **(headers or {})}
    return Response(build_error_body(error, scope), status_code=error.status, headers=combined)


def log_unexpected_error(error: Exception, request_id: str) -> InternalError:
    """Logs an unexpected exception with its traceback; returns the error for the client, which does not show it."""
    log.error("request %s failed unexpectedly", request_id, exc_info=error)
    drop_tracebacks(error)
    return InternalError("The gateway failed to handle this request. The fault is logged with its request id.")
