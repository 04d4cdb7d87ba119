"""Encodes a simulated answer as OpenAI does: a completion, or the events of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.simulator.simulated_model import SimulatedAnswer

ARGUMENT_PIECE_CHARS = 12

_WORD_PIECE = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")


def encode_completion(answer: SimulatedAnswer, envelope: Mapping[str, Any]) -> bytes:
    """Encodes the answer as one `chat.completion`. `envelope` has `id`, `created` and `model`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
    if answer.tool_calls:
        message["tool_calls"] = answer.tool_calls
    choice = {"message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    choices = [{"index": index, **choice} for index in range(answer.choice_count)]
    return orjson.dumps(
        {"object": "chat.completion", **_complete(envelope), "choices": choices, "usage": _build_usage(answer)}
    )


def encode_stream_events(
    answer: SimulatedAnswer, envelope: Mapping[str, Any], *, include_usage: bool
) -> Iterator[bytes]:
    """Yields the answer as server-sent events: role, text in word pieces or tool call deltas, finish reason, usage,
    `[DONE]`.
    """
    head = {"object": "chat.completion.chunk", **_complete(envelope), **({"usage": None} if include_usage else {})}
    for index in range(answer.choice_count):
        for delta, finish_reason in _split_answer_into_deltas(answer):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            yield encode_event({**head, "choices": [choice]})
    if include_usage:
        yield encode_event({**head, "choices": [], "usage": _build_usage(answer)})
    yield b"data: [DONE]\n\n"


def encode_event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _complete(envelope: Mapping[str, Any]) -> dict[str, Any]:
    return {**envelope, "service_tier": "default", "system_fingerprint": "fp_simulated"}


def _build_usage(answer: SimulatedAnswer) -> dict[str, Any]:
    """Returns token numbers in OpenAI's form, with all details zero."""
    completion_details = ("reasoning", "audio", "accepted_prediction", "rejected_prediction")
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {f"{name}_tokens": 0 for name in completion_details},
    }


def _split_answer_into_deltas(answer: SimulatedAnswer) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": None if answer.text is None else "", "refusal": None}, None
    for piece in _WORD_PIECE.findall(answer.text or ""):
        yield {"content": piece}, None
    for index, call in enumerate(answer.tool_calls):
        # Id and name without arguments, then the arguments in pieces.
        kind = call["type"]
        text_field = "arguments" if kind == "function" else "input"
        streamed_text = call[kind][text_field]
        opening = {"id": call["id"], "type": kind, kind: {"name": call[kind]["name"], text_field: ""}}
        yield {"tool_calls": [{"index": index, **opening}]}, None
        for start in range(0, len(streamed_text), ARGUMENT_PIECE_CHARS):
            piece = streamed_text[start : start + ARGUMENT_PIECE_CHARS]
            yield {"tool_calls": [{"index": index, kind: {text_field: piece}}]}, None
    yield {}, answer.finish_reason
