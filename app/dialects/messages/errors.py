"""Errors in the form of the Messages API, and errors of its providers in OpenAI's form. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from app.conversation.json_text import decode_json_or
from app.errors import ChangedCompaction, ContextLengthExceeded, GatewayError, InvalidCapsule, UpstreamRefused

ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The type of an error by its status; other errors of the client are invalid requests, others of the server
`api_error`."""
THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
"""Says that a request must be sent without `thread`, a conversation that Anthropic's servers hold."""
INCOMPLETE_TURN: Final = "compaction_incomplete_turn"
NOTHING_TO_SUMMARIZE: Final = "compaction_nothing_to_summarize"
ERROR_CODES: Final = {
    **{code: code for code in (THREAD_UNSUPPORTED, INCOMPLETE_TURN, NOTHING_TO_SUMMARIZE, ChangedCompaction.code)},
    InvalidCapsule.code: "compaction_signature_invalid",
}
"""What `error_code` says, by the code of the error: clients tell errors apart by it."""
_OVERFLOW: Final = re.compile(r"maximum context length is (\d+) tokens.*?resulted in (\d+) tokens\.?", re.DOTALL)
"""OpenAI's words for a prompt that is too long."""


def build_error_body(error: GatewayError, request_id: str) -> bytes:
    """Returns the body of an error response; that of a provider of this API passes unchanged."""
    if isinstance(error, UpstreamRefused):
        if decode_object_or_empty(error.raw_body).get("type") == "error":
            return error.raw_body
        message = _read_message(error.raw_body) or error.message
    else:
        message = error.message
    if isinstance(error, ContextLengthExceeded) or _OVERFLOW.search(message):
        # Clients such as Claude Code look for these words.
        message = _OVERFLOW.sub(r"prompt is too long: \2 tokens > \1 maximum.", message.removeprefix("This model's "))
    if isinstance(error, InvalidCapsule):
        message = f"{error.param}: {message}"
    kind = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"details": {"error_code": ERROR_CODES[error.code]}} if error.code in ERROR_CODES else {}
    return orjson.dumps(
        {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}
    )


def translate_error_body(body: bytes) -> bytes:
    """Returns an error body in OpenAI's form; any other body as it is."""
    error = decode_object_or_empty(body)
    if error.get("type") != "error":
        return body
    fields: dict[str, Any] = error["error"] if isinstance(error.get("error"), dict) else {}
    message, kind = fields.get("message") or "The request failed.", fields.get("type") or "api_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _read_message(body: bytes) -> str | None:
    error = decode_object_or_empty(body).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None


def decode_object_or_empty(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object; an empty one for anything else."""
    value = decode_json_or(body, None)
    return value if isinstance(value, dict) else {}
