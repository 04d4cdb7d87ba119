"""Renders the frames of the client's stream: `data: {json}` lines with LF, and `[DONE]` at the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.dialects.answer_format import EventStyle
from app.dialects.sse import DONE_DATA, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable

ERROR_EVENT: Final = b"error"
"""The name of an error event."""
MAX_INTEGER_DIGITS: Final = 19
DONE_FRAME: Final = b"data: [DONE]\n\n"
_EMPTY_ERROR: Final = {"message": "", "type": "server_error", "param": None, "code": None}


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


def is_done_event(event: SseEvent) -> bool:
    """Whether the event ends the stream."""
    return event.data is not None and event.data.strip() == DONE_DATA


def render_error_frames(error: GatewayError) -> bytes:
    """Renders an error event and the end of the stream, for a failure after the first byte."""
    try:
        body = orjson.dumps(read_error_body(error))
    except TypeError:  # the upstream's error body is nested too deeply for orjson
        body = orjson.dumps(error.build_body())
    return b"data: " + body + b"\n\n" + DONE_FRAME


class CompactionProgressStream:
    """Renders a stream that begins before the upstream answers, because a compaction runs first.

    Renders the progress frames, then rewrites the upstream's chunks: all chunks of the stream belong to one completion.

    Args:
        completion_id, created, model: identify the completion; `created` in Unix seconds.
        style: the form of the progress events.
        fields: our status fields for the frames during the compaction; they describe the view before the compaction.
    """

    def __init__(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        self.completion_id = completion_id
        self._identity = {
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

    def render_upstream_chunk(self, data: bytes, fields: bytes) -> bytes:
        """Renders an upstream chunk as part of this completion: with our identity, and without the role of choice 0,
        which `render_start` has sent."""
        chunk = decode_chunk(data)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict) and choice.get("index", 0) == 0:
                delta.pop("role", None)
        return b"data: " + splice_fields(encode_chunk({**chunk, **self._identity}), fields) + b"\n\n"

    def _render_event(self, event: Mapping[str, Any], delta: Mapping[str, Any]) -> bytes:
        # `chunk`: strict SDKs accept an extra field of a chunk. `named` and `comment`: events of their own, for clients
        # that read server-sent events themselves. Any other style: no event, only the chunk that keeps the connection
        # alive.
        if self._style == "chunk":
            return self._render_chunk(delta, {"context_event": dict(event)})
        frame = self._render_chunk(delta)
        if self._style == "named":
            return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) + frame
        if self._style == "comment":
            return b": %b %b\n\n" % (event["type"].encode(), orjson.dumps(event)) + frame
        return frame

    def _render_chunk(self, delta: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": None}
        body = {**self._identity, "choices": [choice], **(extra or {})}
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


def read_error_body(error: GatewayError) -> Mapping[str, Any]:
    """Builds an OpenAI error body with `error` as its only key, from the upstream's own error if there is one."""
    if isinstance(error, UpstreamRefused):
        try:
            body = orjson.loads(error.raw_body)
        except orjson.JSONDecodeError:
            return error.build_body()
        return {"error": {**_EMPTY_ERROR, "message": error.message, **_read_error(body)}}
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
