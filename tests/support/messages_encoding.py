"""Encodes an answer as Anthropic does: a message, or the events of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from app.simulator.simulated_model import SimulatedAnswer
from tests.support.prompt_caches import NO_CACHE_USE, CacheUse

STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
JSON_PIECE_CHARS: Final = 12
_WORD_PIECE: Final = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")


def build_message(
    answer: SimulatedAnswer,
    *,
    message_id: str,
    model: str,
    thinking: Sequence[Mapping[str, Any]] = (),
    cache_use: CacheUse = NO_CACHE_USE,
) -> dict[str, Any]:
    """Builds the message of a simulated answer.

    Args:
        thinking: blocks before the text.
    """
    blocks: list[Mapping[str, Any]] = [*thinking]
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        function = call["function"]
        call_id, call_input = call["id"].replace("call_", "toolu_"), orjson.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call_id, "name": function["name"], "input": call_input})
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": STOP_REASONS[answer.finish_reason],
        "stop_sequence": None,
        "usage": {**_build_prompt_usage(answer, cache_use), "output_tokens": answer.completion_tokens},
    }


def _build_prompt_usage(answer: SimulatedAnswer, cache_use: CacheUse) -> dict[str, Any]:
    read, written, long_written = cache_use
    by_lifetime = {"ephemeral_5m_input_tokens": written - long_written, "ephemeral_1h_input_tokens": long_written}
    return {
        "input_tokens": answer.prompt_tokens - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "cache_creation": by_lifetime,
    }


def encode_message_events(message: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields a message as server-sent events: texts in word pieces, inputs in pieces of JSON."""
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _encode_event("message_start", message=begun)
    for index, block in enumerate(message["content"]):
        deltas = list(_split_block(block))
        empty = {delta["grows"]: delta["from"] for delta in deltas}
        yield _encode_event("content_block_start", index=index, content_block={**block, **empty})
        for delta in deltas:
            for piece in delta["pieces"]:
                said = {"type": delta["type"], delta["name"]: piece}
                yield _encode_event("content_block_delta", index=index, delta=said)
        yield _encode_event("content_block_stop", index=index)
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield _encode_event("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]})
    yield _encode_event("message_stop")


def _split_block(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match block:
        case {"type": "text", "text": str(text)}:
            yield _describe_delta("text_delta", "text", _WORD_PIECE.findall(text))
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            yield _describe_delta("thinking_delta", "thinking", _WORD_PIECE.findall(text))
            yield _describe_delta("signature_delta", "signature", [signature])
        case {"type": "tool_use", "input": value}:
            text = orjson.dumps(value).decode()
            pieces = [text[start : start + JSON_PIECE_CHARS] for start in range(0, len(text), JSON_PIECE_CHARS)]
            yield {**_describe_delta("input_json_delta", "partial_json", pieces), "grows": "input", "from": {}}


def _describe_delta(kind: str, name: str, pieces: Sequence[str]) -> dict[str, Any]:
    return {"type": kind, "name": name, "pieces": pieces, "grows": name, "from": ""}


def _encode_event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))
