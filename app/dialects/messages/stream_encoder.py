"""Writes values as the blocks of a message: as the events of a stream, and as objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from app.conversation.json_text import decode_json_or, encode_compact_json
from app.dialects.answer_events import (
    AnswerValue,
    CallBegin,
    CallText,
    Citation,
    Reasoning,
    Refusal,
    Sealed,
    Text,
)
from app.dialects.items.chat_form import PARAGRAPH_BREAK
from app.dialects.messages.message_body import Block, decode_input
from app.dialects.messages.message_rendering import read_sealed_block
from app.dialects.messages.stream_decoder import FINISH_REASONS
from app.dialects.provider_json import encode_json, join_surrogates

STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""`stop_reason` by how an answer has ended in the words of the log."""


class MessagesStreamEncoder:
    """Writes the blocks of one answer: what choice 0 says. One block is open at a time, so a call waits until the input
    of the call before it is whole.

    Args:
        message_id: makes ids for calls that have none."""

    def __init__(self, message_id: str) -> None:
        self.blocks: list[Block] = []
        """By index. A block that is open grows."""
        self._message_id = message_id
        self._is_open = False
        self._source: int | None = None
        """The block of the provider's answer that the open text is from."""
        self._open_call: int | None = None
        self._waiting_calls: list[CallBegin] = []
        self._inputs: dict[int, list[str]] = {}
        """The pieces of each call's input that are not in its block yet, or of the open call all."""

    def encode(self, values: Iterable[AnswerValue]) -> bytes:
        """Writes the events that say values. The beginning and the end of the message have none here."""
        return b"".join([self._write_value(value) for value in values if not getattr(value, "choice", 0)])

    def write_end(self) -> bytes:
        """Ends all blocks."""
        frames = self._end_calls()
        return frames + self._end_block()

    def _write_value(self, value: AnswerValue) -> bytes:
        match value:
            case CallBegin():
                self._waiting_calls.append(value)
                self._inputs[value.call] = []
                return self._begin_next_call()
            case CallText():
                self._inputs[value.call].append(value.text)
                if value.call != self._open_call:
                    return b""
                delta = {"type": "input_json_delta", "partial_json": value.text}
                return self._write_delta(delta) + self._begin_next_call()
            case Text() | Refusal():
                return self._write_text(value.text, value.block)
            case Reasoning() if value.text:
                frames = b""
                if not self._is_open_block("thinking"):
                    frames = self._begin_block({"type": "thinking", "thinking": "", "signature": ""})
                self.blocks[-1]["thinking"] += value.text
                return frames + self._write_delta({"type": "thinking_delta", "thinking": value.text})
            case Sealed():
                return self._write_sealed(value)
            case Citation() if self._is_open_block("text"):
                url, title = value.fields.get("url"), value.fields.get("title")
                found = {"type": "web_search_result_location", "url": url, "title": title}
                citation = {**found, "cited_text": "", "encrypted_index": ""}
                self.blocks[-1].setdefault("citations", []).append(citation)
                return self._write_delta({"type": "citations_delta", "citation": citation})
        return b""

    def _write_text(self, text: str, source: int | None) -> bytes:
        if not text:
            return b""
        frames = b""
        if not self._is_open_block("text"):
            frames = self._begin_block({"type": "text", "text": ""})
        elif source != self._source:
            text = PARAGRAPH_BREAK + text
        self._source = source
        self.blocks[-1]["text"] += text
        return frames + self._write_delta({"type": "text_delta", "text": text})

    def _write_sealed(self, value: Sealed) -> bytes:
        block = read_sealed_block(value.data)
        if block is None:
            return b""  # another provider's
        if block["type"] == "redacted_thinking":
            return self._begin_block(block) + self._end_block()
        frames = (
            b"" if self._is_open_block("thinking") else self._begin_block({**block, "thinking": "", "signature": ""})
        )
        signature = block.get("signature") or ""
        self.blocks[-1]["signature"] = signature
        return frames + self._write_delta({"type": "signature_delta", "signature": signature}) + self._end_block()

    def _begin_next_call(self) -> bytes:
        """Begins the next call that waits, if no call is open whose input may still grow."""
        frames = b""
        while self._waiting_calls and (self._open_call is None or self._has_whole_input(self._open_call)):
            call = self._waiting_calls.pop(0)
            call_id = call.id or f"toolu_{self._message_id.removeprefix('msg_')}_{call.call}"
            named = {
                "type": "tool_use",
                "id": join_surrogates(call_id),
                "name": join_surrogates(call.name),
                "input": {},
            }
            frames += self._begin_block(named)
            self._open_call = call.call
            if text := "".join(self._inputs[call.call]):
                frames += self._write_delta({"type": "input_json_delta", "partial_json": text})
        return frames

    def _has_whole_input(self, call: int) -> bool:
        return isinstance(decode_json_or("".join(self._inputs[call]), None), dict)

    def _end_calls(self) -> bytes:
        frames = b""
        while self._waiting_calls:
            self._open_call = None
            frames += self._begin_next_call()
        return frames

    def _is_open_block(self, kind: str) -> bool:
        return self._is_open and self.blocks[-1]["type"] == kind

    def _begin_block(self, block: Block) -> bytes:
        frames = self._end_calls() if block["type"] != "tool_use" else b""
        frames += self._end_block()
        self.blocks.append(dict(block))
        self._is_open = True
        start = {"index": len(self.blocks) - 1, "content_block": block}
        return frames + write_event("content_block_start", start)

    def _end_block(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        if self._open_call is not None and self.blocks[-1]["type"] == "tool_use":
            self.blocks[-1]["input"] = decode_input("".join(self._inputs[self._open_call]) or "{}")
            self._open_call = None
        return write_event("content_block_stop", {"index": len(self.blocks) - 1})

    def _write_delta(self, delta: Mapping[str, Any]) -> bytes:
        return write_event("content_block_delta", {"index": len(self.blocks) - 1, "delta": delta})


def write_whole_block(index: int, block: Block) -> bytes:
    """Writes the events of a block that is whole: its texts in one delta each."""
    started = dict(block)
    deltas: list[dict[str, Any]] = []
    match block:
        case {"type": "text", "text": str(text)}:
            started["text"] = ""
            deltas = [{"type": "text_delta", "text": text}]
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            started |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]
        case {"type": "compaction", "content": text}:
            started |= {"content": None, "encrypted_content": None}
            sealed = block.get("encrypted_content")
            deltas.append({"type": "compaction_delta", "content": text, "encrypted_content": sealed})
        case {"type": "tool_use", "input": value}:
            started["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": encode_compact_json(value)}]
    frames = [write_event("content_block_start", {"index": index, "content_block": started})]
    frames += [write_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
    return b"".join([*frames, write_event("content_block_stop", {"index": index})])


def write_event(kind: str, members: Mapping[str, Any]) -> bytes:
    """Writes an event of the stream. Members may hold halves of a surrogate pair."""
    return write_data(kind.encode(), encode_json({"type": kind, **members}))


def write_data(kind: bytes, data: bytes) -> bytes:
    """Writes an event with its data as JSON text."""
    if b"\n" in data:
        data = data.replace(b"\n", b" ")
    return b"event: %b\ndata: %b\n\n" % (kind, data)


def build_message_object(
    message_id: str,
    model: str | None,
    blocks: Iterable[Block] = (),
    *,
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
    native: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Builds a message of the API.

    Args:
        finish, usage: in the words and the form of the log.
        native: `stop_reason`, `stop_sequence` and `usage` as a provider of this API said them.
    """
    facts = native or {}
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model or "",
        "content": list(blocks),
        "stop_reason": facts.get("stop_reason") or choose_stop_reason(finish),
        "stop_sequence": facts.get("stop_sequence"),
        "usage": facts.get("usage") or build_usage(usage),
    }


def choose_stop_reason(finish: str | None) -> str | None:
    """Returns the `stop_reason` for how an answer has ended in the words of the log. None if it has not ended."""
    return None if finish is None else STOP_REASONS.get(finish, finish if finish in FINISH_REASONS else "end_turn")


def build_usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Builds a usage object from one in the form of the log: tokens of the cache are not in `input_tokens`."""
    counts = usage or {}
    details = counts.get("prompt_tokens_details") or {}
    read, written = (_read_count(details, name) for name in ("cached_tokens", "cache_write_tokens"))
    return {
        "input_tokens": max(0, _read_count(counts, "prompt_tokens") - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": _read_count(counts, "completion_tokens"),
    }


def splice_message(data: bytes, fields: bytes) -> bytes:
    """Adds our fields to the message in the data of `message_start`."""
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    message = bytes(members["message"]).strip()
    members["message"] = msgspec.Raw(message[:-1] + b"," + fields + b"}")
    return msgspec.json.encode(members)


def _read_count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
