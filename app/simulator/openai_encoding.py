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
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    return orjson.dumps({"object": "chat.completion", **envelope, "choices": [choice], "usage": _build_usage(answer)})


def encode_stream_events(
    answer: SimulatedAnswer, envelope: Mapping[str, Any], *, include_usage: bool
) -> Iterator[bytes]:
    """Yields the answer as server-sent events: role, text in word pieces or tool call deltas, finish reason, usage,
    `[DONE]`.
    """
    head = {"object": "chat.completion.chunk", **envelope, **({"usage": None} if include_usage else {})}
    for delta, finish_reason in _split_answer_into_deltas(answer):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        yield _encode_event({**head, "choices": [choice]})
    if include_usage:
        yield _encode_event({**head, "choices": [], "usage": _build_usage(answer)})
    yield b"data: [DONE]\n\n"


def _encode_event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _build_usage(answer: SimulatedAnswer) -> dict[str, Any]:
    written = {"cache_write_tokens": answer.written_tokens} if answer.written_tokens else {}
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens, **written},
    }


def _split_answer_into_deltas(answer: SimulatedAnswer) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": None if answer.text is None else "", "refusal": None}, None
    for piece in _WORD_PIECE.findall(answer.text or ""):
        yield {"content": piece}, None
    for index, call in enumerate(answer.tool_calls):
        # Id and name without arguments, then the arguments in pieces.
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]}, None
        for start in range(0, len(arguments), ARGUMENT_PIECE_CHARS):
            piece = arguments[start : start + ARGUMENT_PIECE_CHARS]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
    yield {}, answer.finish_reason
