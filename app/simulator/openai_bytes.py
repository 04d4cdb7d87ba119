"""A simulated answer as OpenAI's bytes: a completion, or the events of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.simulator.model import SimulatedAnswer

DONE = b"data: [DONE]\n\n"
ARGUMENT_PIECE_CHARS = 12

_PIECE = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str

    def around(self, kind: str, **rest: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
            **rest,
        }


def completion(answer: SimulatedAnswer, envelope: Envelope) -> bytes:
    """The answer as one `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        for index in range(answer.choices)
    ]
    return orjson.dumps(envelope.around("chat.completion", choices=choices, usage=answer.usage()))


def events(answer: SimulatedAnswer, envelope: Envelope, *, include_usage: bool) -> Iterator[bytes]:
    """The answer as server-sent events: role, text in word pieces or tool call deltas, finish, usage, `[DONE]`."""
    empty_usage = {"usage": None} if include_usage else {}
    for index in range(answer.choices):
        for delta, finish_reason in _deltas(answer):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            yield event(envelope.around("chat.completion.chunk", choices=[choice], **empty_usage))
    if include_usage:
        yield event(envelope.around("chat.completion.chunk", choices=[], usage=answer.usage()))
    yield DONE


def event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _deltas(answer: SimulatedAnswer) -> Iterator[tuple[dict[str, Any], str | None]]:
    opening = None if answer.text is None else ""
    yield {"role": "assistant", "content": opening, "refusal": None}, None
    for piece in _PIECE.findall(answer.text or ""):
        yield {"content": piece}, None
    for index, call in enumerate(answer.tool_calls):
        for fragment in _call_deltas(call):
            yield {"tool_calls": [{"index": index, **fragment}]}, None
    yield {}, answer.finish_reason


def _call_deltas(call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A call in fragments: its head without arguments, then these in pieces."""
    kind = call["type"]
    name, growing = ("arguments", call[kind].get("arguments")) if kind == "function" else ("input", call[kind]["input"])
    yield {"id": call["id"], "type": kind, kind: {"name": call[kind]["name"], name: ""}}
    for start in range(0, len(growing), ARGUMENT_PIECE_CHARS):
        yield {kind: {name: growing[start : start + ARGUMENT_PIECE_CHARS]}}
