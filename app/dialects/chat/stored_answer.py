"""Renders a stored answer as a completion object or as a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.conversation.conversation_types import LogMessage
from app.dialects.answer_format import StoredAnswer
from app.dialects.body.message import decode_body
from app.dialects.chat.stream_frames import DONE_FRAME


def build_stored_completion(entry: LogMessage, model: str) -> dict[str, Any]:
    """Builds OpenAI's completion object of a stored answer.

    Args:
        entry: the answer; its facts are those of `ChatStreamDecoder.build_facts`.
        model: the name that the request has, used if the provider reported none.
    """
    facts = entry.meta or {}
    return {
        **_build_common_fields(entry, model, "chat.completion"),
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": facts.get("finish_reason")}
            for index, message in enumerate(_list_messages(entry))
        ],
        "usage": facts.get("usage"),
    }


def render_stored_stream(stored: StoredAnswer) -> Iterator[bytes]:
    """Renders a stored answer as the frames of a stream: a chunk with each message, a chunk with each end, `[DONE]`."""
    facts, gateway_fields, messages = stored.facts, stored.gateway_fields, _list_messages(stored.entry)
    common_fields = _build_common_fields(stored.entry, stored.model, "chat.completion.chunk")
    for index, message in enumerate(messages):
        choice = _build_chunk_choice(index, _build_delta(message), None)
        yield _render_frame({**common_fields, "choices": [choice], **gateway_fields})
    for index in range(len(messages)):
        choice = _build_chunk_choice(index, {}, facts.get("finish_reason"))
        yield _render_frame({**common_fields, "choices": [choice], **stored.all_fields})
    if stored.include_usage:
        yield _render_frame({**common_fields, "choices": [], "usage": facts.get("usage"), **gateway_fields})
    yield DONE_FRAME


def _render_frame(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _list_messages(entry: LogMessage) -> list[dict[str, Any]]:
    """Returns the message of each choice."""
    return [decode_body(entry.message), *(entry.meta or {}).get("alternatives", ())]


def _build_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}


def _build_chunk_choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _build_common_fields(entry: LogMessage, model: str, object_type: str) -> dict[str, Any]:
    facts = entry.meta or {}
    created = int(entry.created_at.timestamp()) if entry.created_at else 0
    return {"id": facts.get("id"), "object": object_type, "created": created, "model": facts.get("model") or model}
