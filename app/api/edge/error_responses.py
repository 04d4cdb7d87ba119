"""Errors → HTTP. Every path and status answers with OpenAI's error body and says whether a retry can help."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

import orjson
from starlette.responses import Response

from app.api.edge.forwarded_headers import select_client_headers
from app.errors import (
    GatewayError,
    InternalError,
    MethodNotAllowed,
    StoreUnreadable,
    UpstreamRefused,
    drop_tracebacks,
)
from app.observability.request_facts import record_error

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 1
"""With an error of ours that passes by itself and does not say when."""
UPSTREAM_ONLY_HEADERS: Final = frozenset({"content-length", "request-id", "x-request-id"})
"""What an upstream's refusal says of itself, and the gateway's answer says anew."""
RETRY_AFTER_STATUSES: Final = (409, 503)
CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status for a client that is gone; it is told in numbers and logs alone."""


def build_error_headers(error: GatewayError) -> dict[str, str]:
    """Headers that belong to an error: its own, and whether a retry can mend it."""
    if isinstance(error, UpstreamRefused):
        passed = select_client_headers(error.headers)
        return {name: value for name, value in passed.items() if name not in UPSTREAM_ONLY_HEADERS}
    headers = {"allow": ", ".join(error.allowed)} if isinstance(error, MethodNotAllowed) and error.allowed else {}
    pause_seconds = error.retry_after_seconds
    if pause_seconds is None and error.retryable and error.status in RETRY_AFTER_STATUSES:
        pause_seconds = RETRY_AFTER_SECONDS
    if pause_seconds is not None:
        headers["retry-after"] = str(max(1, math.ceil(pause_seconds)))
    if not error.retryable and (error.status < 500 or isinstance(error, StoreUnreadable)):
        headers["x-should-retry"] = "false"
    return headers


def build_error_body(error: GatewayError) -> bytes:
    """The body of an error answer; an upstream's own passes unchanged."""
    return error.raw_body if isinstance(error, UpstreamRefused) else orjson.dumps(error.build_body())


def build_error_response(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    """A whole error answer, noted for whoever watches."""
    record_error(error)
    drop_tracebacks(error)
    combined = {"content-type": "application/json", **build_error_headers(error), **(headers or {})}
    return Response(build_error_body(error), status_code=error.status, headers=combined)


def log_unexpected_error(error: Exception, request_id: str) -> InternalError:
    """An error nobody foresaw: logged with its trace, told without."""
    log.error("request %s failed unexpectedly", request_id, exc_info=error)
    drop_tracebacks(error)
    return InternalError("The gateway failed to handle this request. The fault is logged with its request id.")
