"""Renders the frames of the client's stream: `data: {json}` lines with LF, and `[DONE]` at the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.dialects.answer_format import Progress
from app.dialects.error_body import encode_error_body
from app.errors import GatewayError

ERROR_EVENT: Final = b"error"
"""The name of an error event."""
DONE_FRAME: Final = b"data: [DONE]\n\n"


def splice_fields(data: bytes, fields: bytes) -> bytes:
    """Adds our fields at the end of a JSON object without decoding the object.

    JSON parsers take the last of equal names, so our fields win over those of another gateway behind us. Some servers
    wrap a single object in a list; the object is unwrapped.
    """
    body = data.strip()
    if body[:1] == b"[":
        body = body[1:-1].strip()
    open_body = body[:-1].rstrip()
    return b"%b%b%b}" % (open_body, b"" if open_body.endswith(b"{") else b",", fields)


def render_error_frames(error: GatewayError) -> bytes:
    """Renders an error event and the end of the stream, for a failure after the first byte."""
    return b"data: " + encode_error_body(error) + b"\n\n" + DONE_FRAME


def build_progress_identity(progress: Progress) -> dict[str, Any]:
    """Returns what all chunks have in common of a stream that begins with the progress of a compaction."""
    named = {"id": progress.completion_id, "object": "chat.completion.chunk"}
    return {**named, "created": progress.created, "model": progress.model}


def render_progress_chunk(progress: Progress, extra: Mapping[str, Any], **delta: str) -> bytes:
    """Renders a chunk without content.

    Args:
        extra: further fields of the chunk.
        delta: further fields of the delta.
    """
    choice = {"index": 0, "delta": {**delta, "content": ""}, "finish_reason": None}
    body = {**build_progress_identity(progress), "choices": [choice], **extra}
    return b"data: " + splice_fields(orjson.dumps(body), progress.fields) + b"\n\n"
