"""Renders the frames of the client's stream: `data: {json}` lines with LF, and `[DONE]` at the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.dialects.answer_format import EventStyle, render_progress_event
from app.dialects.error_body import encode_error_body
from app.errors import GatewayError, UpstreamUnavailable

ERROR_EVENT: Final = b"error"
"""The name of an error event."""
MAX_INTEGER_DIGITS: Final = 19
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


class CompactionProgressStream:
    """Renders a stream that begins before the upstream answers, because a compaction runs first.

    All chunks of the stream belong to one completion.

    Args:
        completion_id, created, model: identify the completion; `created` in Unix seconds.
        style: the form of the progress events.
        fields: our status fields for the frames during the compaction; they describe the view before the compaction.
    """

    def __init__(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        self.completion_id = completion_id
        self.identity = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._style = style
        self._fields = fields

    def render_start(self, event: Mapping[str, Any]) -> bytes:
        """Renders the first chunk, with the event that a compaction has started."""
        return self._render_event(event, {"role": "assistant", "content": ""})

    def render_heartbeat(self) -> bytes:
        """Renders a chunk without content, so that the client's read timeout does not expire."""
        return self._render_chunk({"content": ""})

    def render_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        """Renders the chunk with the outcome of the compaction.

        Args:
            fields: our status fields for the view after the compaction.
        """
        self._fields = fields
        return self._render_event(event, {"content": ""})

    def _render_event(self, event: Mapping[str, Any], delta: Mapping[str, Any]) -> bytes:
        return render_progress_event(self._style, event, lambda extra: self._render_chunk(delta, extra))

    def _render_chunk(self, delta: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": None}
        body = {**self.identity, "choices": [choice], **(extra or {})}
        return b"data: " + splice_fields(orjson.dumps(body), self._fields) + b"\n\n"


def decode_chunk(data: bytes) -> dict[str, Any]:
    """Decodes a JSON object of an upstream's stream, as leniently as the stream collector does.

    Accepts halves of a surrogate pair, and takes a single object out of a list.

    Raises:
        UpstreamUnavailable: the data is nested too deeply, or is not JSON; the collector's typed decoder skips fields
            that it does not know.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        # Some servers split a character between two chunks and send half of a surrogate pair, which orjson refuses.
        value = _decode_leniently(data)
    if may_be_too_deep(data) and is_too_deep(value):
        raise UpstreamUnavailable(f"The provider's answer {TOO_DEEP_MESSAGE}")
    chunk: dict[str, Any] = value[0] if isinstance(value, list) else value
    return chunk


def _decode_leniently(data: bytes) -> Any:
    try:
        return json.loads(data, parse_int=parse_integer)
    except (ValueError, RecursionError) as error:
        raise UpstreamUnavailable("The upstream's stream contains data that is not JSON.") from error


def parse_integer(digits: str) -> int | float:
    """Reads an integer as orjson does: one that 64 bits cannot hold becomes a float."""
    return int(digits) if len(digits) < MAX_INTEGER_DIGITS else float(digits)


def encode_chunk(body: Any) -> bytes:
    """Encodes JSON that may hold halves of a surrogate pair or integers beyond 64 bits.

    Raises:
        UpstreamUnavailable: the value is nested too deeply.
    """
    try:
        return orjson.dumps(body)
    except TypeError:
        pass
    try:
        return json.dumps(body, separators=(",", ":")).encode()
    except RecursionError as error:
        raise UpstreamUnavailable("The upstream's stream contains data that is nested too deeply.") from error
