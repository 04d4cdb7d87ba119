"""Encodes a simulated answer as OpenAI does: a completion, or the events of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.simulator.simulated_model import SimulatedAnswer

DONE_EVENT = b"data: [DONE]\n\n"
ARGUMENT_PIECE_CHARS = 12

_WORD_PIECE = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class AnswerEnvelope:
    """The fields that every object of one answer repeats."""

    id: str
    created: int
    model: str

    def wrap(self, kind: str, **rest: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
            **rest,
        }


def encode_completion(answer: SimulatedAnswer, envelope: AnswerEnvelope) -> bytes:
    """Encodes the answer as one `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        for index in range(answer.choice_count)
    ]
    return orjson.dumps(envelope.wrap("chat.completion", choices=choices, usage=answer.build_usage()))


def encode_stream_events(answer: SimulatedAnswer, envelope: AnswerEnvelope, *, include_usage: bool) -> Iterator[bytes]:
    """Yields the answer as server-sent events: role, text in word pieces or tool call deltas, finish reason, usage,
    `[DONE]`.
    """
    empty_usage = {"usage": None} if include_usage else {}
    for index in range(answer.choice_count):
        for delta, finish_reason in _split_answer_into_deltas(answer):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            yield encode_event(envelope.wrap("chat.completion.chunk", choices=[choice], **empty_usage))
    if include_usage:
        yield encode_event(envelope.wrap("chat.completion.chunk", choices=[], usage=answer.build_usage()))
    yield DONE_EVENT


def encode_event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _split_answer_into_deltas(answer: SimulatedAnswer) -> Iterator[tuple[dict[str, Any], str | None]]:
    opening = None if answer.text is None else ""
    yield {"role": "assistant", "content": opening, "refusal": None}, None
    for piece in _WORD_PIECE.findall(answer.text or ""):
        yield {"content": piece}, None
    for index, call in enumerate(answer.tool_calls):
        for fragment in _split_call_into_deltas(call):
            yield {"tool_calls": [{"index": index, **fragment}]}, None
    yield {}, answer.finish_reason


def _split_call_into_deltas(call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a call in fragments: id and name without arguments, then the arguments in pieces."""
    kind = call["type"]
    text_field, streamed_text = (
        ("arguments", call[kind].get("arguments")) if kind == "function" else ("input", call[kind]["input"])
    )
    yield {"id": call["id"], "type": kind, kind: {"name": call[kind]["name"], text_field: ""}}
    for start in range(0, len(streamed_text), ARGUMENT_PIECE_CHARS):
        yield {kind: {text_field: streamed_text[start : start + ARGUMENT_PIECE_CHARS]}}
