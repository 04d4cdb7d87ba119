"""Builds the body of an error in OpenAI's form, which both of its protocols have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.conversation.json_text import decode_json_or
from app.errors import GatewayError, UpstreamRefused

_EMPTY_ERROR: Final = {"message": "", "type": "server_error", "param": None, "code": None}


def encode_error_body(error: GatewayError) -> bytes:
    """Encodes the body of an error, from the upstream's own error if there is one."""
    try:
        return orjson.dumps(read_error_body(error))
    except TypeError:  # the upstream's error body is nested too deeply for orjson
        return orjson.dumps(error.build_body())


def read_error_body(error: GatewayError) -> Mapping[str, Any]:
    """Builds an OpenAI error body with `error` as its only key, from the upstream's own error if there is one."""
    if isinstance(error, UpstreamRefused):
        said = _read_error(decode_json_or(error.raw_body, None))
        return {"error": {**_EMPTY_ERROR, "message": error.message, **said}}
    return error.build_body()


def _read_error(body: Any) -> Mapping[str, Any]:
    """Reads the fields of an upstream's error: `{"error": {…}}`, `{"error": "…"}`, `{…}`, or one of these in a list."""
    if isinstance(body, list):
        body = body[0] if body else None
    if not isinstance(body, dict):
        return {}
    inner = body.get("error", body)
    if isinstance(inner, str):
        return {"message": inner}
    if not isinstance(inner, dict):
        return {}
    return inner if inner.get("message") else {**inner, "message": str(inner.get("detail") or "The upstream failed.")}
