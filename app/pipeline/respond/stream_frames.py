"""Frames of the client's stream: only `data: {json}` lines with LF, and `[DONE]` at the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable
from app.pipeline.chat_request import EventStyle

DONE_FRAME: Final = b"data: [DONE]\n\n"
_EMPTY_ERROR: Final = {"message": "", "type": "server_error", "param": None, "code": None}


def splice_fields(data: bytes, fields: bytes) -> bytes:
    """A JSON object with our fields added at its end, where they win over same-named ones of a gateway behind us.

    Some servers wrap an only object in a list; it is taken out.
    """
    body = data.strip()
    if body[:1] == b"[":
        body = body[1:-1].strip()
    open_body = body[:-1].rstrip()
    return b"%b%b%b}" % (open_body, b"" if open_body.endswith(b"{") else b",", fields)


def render_error_frames(error: GatewayError) -> bytes:
    """A failure after the start of a stream, then the end."""
    try:
        body = orjson.dumps(_build_error_body(error))
    except TypeError:  # an upstream's own, nested too deeply to be written
        body = orjson.dumps(error.build_body())
    return b"data: " + body + b"\n\n" + DONE_FRAME


class CompactionProgressStream:
    """A stream that began before the upstream did, because a compaction runs: its frames until then, and the upstream's
    chunks made to look as if they belonged to one completion from first to last.

    Args:
        completion_id, created, model: of the completion; `created` in Unix seconds.
        style: how progress is told.
        fields: ours, while the compaction runs: the status of what would be sent without it.
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
        """The first chunk, which says that a compaction has started."""
        return self._render_event(event, {"role": "assistant", "content": ""})

    def render_heartbeat(self) -> bytes:
        """A chunk without content, so that no reader times out."""
        return self._render_chunk({"content": ""})

    def render_end(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        """The chunk that says how the compaction ended.

        Args:
            fields: ours, of what is sent now.
        """
        self._fields = fields
        return self._render_event(event, {"content": ""})

    def render_upstream_chunk(self, data: bytes, fields: bytes) -> bytes:
        """An upstream chunk as part of this completion: the identity is ours, the role was already sent."""
        chunk = decode_chunk(data)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict) and choice.get("index", 0) == 0:
                delta.pop("role", None)
        return b"data: " + splice_fields(encode_chunk({**chunk, **self._identity}), fields) + b"\n\n"

    def _render_event(self, event: Mapping[str, Any], delta: Mapping[str, Any]) -> bytes:
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
    """An upstream's JSON object that the collector has accepted, which lets halves of a character pass and takes an
    object out of a list.

    Raises:
        UpstreamUnavailable: what the collector did not look at is no JSON.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _decode_leniently(data)
    chunk: dict[str, Any] = value[0] if isinstance(value, list) else value
    return chunk


def _decode_leniently(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamUnavailable("The upstream's stream holds data that is not JSON.") from error


def encode_chunk(body: Mapping[str, Any]) -> bytes:
    """A JSON object that may hold halves of a character.

    Raises:
        UpstreamUnavailable: it is nested too deeply to be written.
    """
    try:
        return orjson.dumps(body)
    except TypeError:
        pass
    try:
        return json.dumps(body, separators=(",", ":")).encode()
    except RecursionError as error:
        raise UpstreamUnavailable("The upstream's stream holds data that is nested too deeply.") from error


def _build_error_body(error: GatewayError) -> Mapping[str, Any]:
    """An OpenAI error body with `error` as its only key; an upstream's own error where it has that shape."""
    if isinstance(error, UpstreamRefused):
        try:
            body = orjson.loads(error.raw_body)
        except orjson.JSONDecodeError:
            return error.build_body()
        return {"error": {**_EMPTY_ERROR, "message": error.message, **_read_error(body)}}
    return error.build_body()


def _read_error(body: Any) -> Mapping[str, Any]:
    """What an upstream's error body says, in whichever of the usual shapes it comes."""
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
