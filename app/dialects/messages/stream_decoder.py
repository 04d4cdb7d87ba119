"""Decodes answers of the Messages API: assembles the blocks, and makes values if they are wanted. Pure.

Blocks that only the Messages API has, such as those of tools that the provider runs itself, have no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import orjson

from app.conversation.json_text import encode_compact_json
from app.dialects.answer_decoding import PROTOCOL_FACTS, AnswerDecoder
from app.dialects.answer_events import (
    AnswerValue,
    Begin,
    CallBegin,
    CallText,
    Citation,
    Failure,
    Finish,
    Reasoning,
    Sealed,
    Text,
    Usage,
)
from app.dialects.messages.context_edits import EDITS_FIELD, sum_cleared_tokens
from app.dialects.messages.errors import decode_object_or_empty, translate_error_body
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.message_body import THINKING_TYPES, Block, decode_input
from app.dialects.messages.message_rendering import build_sealed_text
from app.dialects.provider_json import normalize_json
from app.dialects.usage import CLEARED_TOKENS
from app.errors import UpstreamUnavailable

FINISH_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""How an answer has ended in the words of the log, by `stop_reason`; any other word stays."""
SEALED_THINKING: Final = "thinking"
"""`Sealed.kind` of a block of thinking: its data is the JSON text of the block."""
NATIVE_FACTS_KEY: Final = "anthropic"
"""Key in `LogMessage.meta`: what the provider said of its answer that the other facts cannot say."""
NATIVE_FACTS: Final = ("stop_reason", "stop_sequence", "usage")
TEXT_TARGETS: Final = {"text": "text", "thinking": "thinking", "signature": "signature", "partial_json": "input"}
"""The member of a block that grows by each member of a delta."""
CACHE_COUNTS: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""Tokens of the prompt that `input_tokens` does not count."""
_NO_JSON: Final = msgspec.Raw()


class MessagesEvent(msgspec.Struct, gc=False):
    """The fields of stream events that are read."""

    type: str = ""
    index: int = 0
    delta: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    message: msgspec.Raw = _NO_JSON
    usage: dict[str, Any] | None = None
    context_management: Any = None


class _WholeMessage(msgspec.Struct):
    content: list[msgspec.Raw]


_decode_event: Final = msgspec.json.Decoder(MessagesEvent).decode
_decode_whole: Final = msgspec.json.Decoder(_WholeMessage).decode


class MessagesStreamDecoder(AnswerDecoder):
    """Decodes a message, event by event."""

    protocol = "anthropic"

    def __init__(self, source_name: str = "upstream") -> None:
        super().__init__(source_name)
        self._native: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "usage": {}}
        self._blocks: dict[int, Block] = {}
        """The blocks as they began, with lists that have grown."""
        self._texts: dict[int, dict[str, list[str]]] = {}
        """The pieces of the texts of each block, by the member that grows."""
        self._text_runs: dict[int, int] = {}
        """The index of the first block of a run of texts, by the index of each. Citations split a text into blocks."""
        self._calls: dict[int, int] = {}
        """The number of each call, by the index of its block."""
        self._raw_blocks: list[bytes] | None = None
        """The blocks of a whole answer, with the provider's bytes."""

    def watch(self, data: bytes, name: bytes = b"") -> MessagesEvent:
        """Adds the data of one event. Returns the event.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """
        event = self._decode(data)
        kind = event.type = event.type or name.decode("utf-8", "replace")
        if kind == "content_block_delta":
            self._add_delta(event.index, event.delta or {})
        elif kind == "content_block_start":
            block = event.content_block or {}
            self._begin_block(event.index, block)
            is_thought = block.get("type") in THINKING_TYPES
            self.has_content = self.has_content or not (is_thought or block.get("text") == "")
        elif kind == "message_start":
            self._add_message(decode_object_or_empty(bytes(event.message)))
        elif kind == "message_delta":
            self._add_end(event.delta or {}, event.context_management)
            self._add_usage(event.usage or {})
        elif kind == "message_stop":
            self.has_ended = True
        elif kind == "error":
            self.error_data, self.has_ended = data, True
        return event

    def decode(self, data: bytes, name: bytes = b"") -> list[AnswerValue]:
        """Adds the data of one event and returns what it says.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """
        event = self.watch(data, name)
        match event.type:
            case "content_block_delta":
                return [*self._read_delta(event.index, event.delta or {})]
            case "message_start":
                return [Begin(self.id, None, self.model)]
            case "content_block_start":
                return [*self._read_block_start(event.index)]
            case "content_block_stop":
                return [*self._read_block_end(event.index)]
            case "message_delta":
                ended: list[AnswerValue] = [Finish(self.finish)] if self.finish is not None else []
                return ended if self.usage is None else [*ended, Usage(self.usage)]
            case "error":
                return [Failure(translate_error_body(data))]
        return []

    def list_blocks(self, count: int) -> list[Block]:
        """Returns the first blocks as they have come."""
        return [self._build_block(index) for index in sorted(self._blocks)[:count]]

    def add_whole(self, body: bytes) -> None:
        """Adds the body of a whole answer in place of events; one that is an error sets `error_data`.

        Raises:
            UpstreamUnavailable: the body is neither a message nor an error.
        """
        message = decode_object_or_empty(normalize_json(body))
        if message.get("type") == "error" or ("error" in message and "content" not in message):
            self.error_data = body
            return
        try:
            self._raw_blocks = [bytes(raw) for raw in _decode_whole(normalize_json(body)).content]
        except msgspec.DecodeError as error:
            raise UpstreamUnavailable("The message has no list of blocks.") from error
        self._add_end(message, message.get(EDITS_FIELD))
        self._add_message(message)
        for index, raw in enumerate(self._raw_blocks):
            block = decode_object_or_empty(raw)
            self._begin_block(index, block)
            self.has_content = self.has_content or block.get("type") not in THINKING_TYPES
        self.is_complete = self.has_ended = True
        self.finish = self.finish or "stop"

    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        """Returns what a whole answer says that was added by `add_whole`."""
        values: list[AnswerValue] = [Begin(self.id, None, self.model)]
        for index in self._blocks:
            values += [*self._read_block_start(index), *self._read_block_end(index)]
        values.append(Finish(str(self.finish)))
        return values if self.usage is None else [*values, Usage(self.usage)]

    def build_item(self) -> MessagesMessage:
        """Returns the answer as the log keeps it."""
        blocks = self._raw_blocks
        if blocks is None:
            blocks = [orjson.dumps(self._build_block(index)) for index in sorted(self._blocks)]
        return MessagesMessage.from_raw_blocks("assistant", blocks)

    def build_facts(self) -> dict[str, Any]:
        applied = {PROTOCOL_FACTS: {EDITS_FIELD: self._native[EDITS_FIELD]}} if EDITS_FIELD in self._native else {}
        native = {name: self._native.get(name) for name in NATIVE_FACTS}
        return {**super().build_facts(), NATIVE_FACTS_KEY: native, **applied}

    def _decode(self, data: bytes) -> MessagesEvent:
        try:
            return _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            return _decode_event(normalize_json(data))
        except (msgspec.DecodeError, RecursionError) as error:
            # If the event were skipped, a part of the answer could be missing unnoticed.
            raise UpstreamUnavailable(f"{self._source_name!r} sent a stream event that cannot be read.") from error

    def _begin_block(self, index: int, block: Block) -> None:
        self._blocks[index] = block
        if block.get("type") == "tool_use":
            self._calls[index] = len(self._calls)
        elif block.get("type") == "text":
            self._text_runs[index] = self._text_runs.get(index - 1, index)

    def _add_message(self, message: Mapping[str, Any]) -> None:
        message_id, model = message.get("id"), message.get("model")
        self.id = message_id if isinstance(message_id, str) else None
        self.model = model if isinstance(model, str) else None
        self._add_usage(message.get("usage") or {})

    def _add_end(self, fields: Mapping[str, Any], applied_edits: object) -> None:
        if isinstance(applied_edits, dict):
            self._native[EDITS_FIELD] = applied_edits
        reason = fields.get("stop_reason")
        if isinstance(reason, str):
            self._native |= {name: fields.get(name) for name in ("stop_reason", "stop_sequence")}
            self.finish, self.is_complete = FINISH_REASONS.get(reason, reason), True

    def _add_usage(self, counts: Mapping[str, Any]) -> None:
        usage = self._native["usage"] = {
            **self._native["usage"],
            **{name: count for name, count in counts.items() if count is not None},
        }
        if isinstance(usage.get("input_tokens"), int):
            cleared = sum_cleared_tokens(self._native.get(EDITS_FIELD))
            self.usage = translate_usage(usage) | ({CLEARED_TOKENS: cleared} if cleared else {})

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if name == "citation":
                block = self._blocks.setdefault(index, {"type": "text", "text": ""})
                block["citations"] = [*(block.get("citations") or []), value]
            elif name != "type" and isinstance(value, str):
                target = TEXT_TARGETS.get(name, name)
                self._texts.setdefault(index, {}).setdefault(target, []).append(value)
                self.has_content = self.has_content or (target == "text" and bool(value))

    def _build_block(self, index: int) -> Block:
        """Returns a block with the texts that have come."""
        block = dict(self._blocks[index])
        for name, pieces in self._texts.get(index, {}).items():
            text = "".join(pieces)
            if name != "input":
                block[name] = str(block.get(name) or "") + text
            elif text:
                block[name] = decode_input(text)
        return block

    def _read_delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[AnswerValue]:
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                yield Text(text, self._text_runs.get(index, index))
            case {"type": "thinking_delta", "thinking": str(text)} if text:
                yield Reasoning(text, index)
            case {"type": "input_json_delta", "partial_json": str(text)} if text and index in self._calls:
                yield CallText(self._calls[index], text)
            case {"type": "citations_delta", "citation": dict(citation)}:
                yield from self._read_citation(index, citation)

    def _read_block_start(self, index: int) -> Iterator[AnswerValue]:
        match self._blocks[index]:
            case {"type": "text", "text": str(text)} if text:
                yield Text(text, self._text_runs[index])
            case {"type": "thinking", "thinking": str(text)} if text:
                yield Reasoning(text, index)
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                yield CallBegin(self._calls[index], call_id, name)

    def _read_block_end(self, index: int) -> Iterator[AnswerValue]:
        if index not in self._blocks:
            return
        block = self._build_block(index)
        kind = block.get("type")
        if kind in THINKING_TYPES:
            if not block.get("thinking"):
                yield Reasoning("", index)
            yield Sealed(SEALED_THINKING, build_sealed_text(block), index)
        elif kind == "tool_use" and not "".join(self._texts.get(index, {}).get("input", ())):
            # Its input came whole, or is empty: others expect an object.
            yield CallText(self._calls[index], encode_compact_json(block.get("input") or {}))
        elif kind == "text" and self._raw_blocks is not None:
            for citation in block.get("citations") or ():
                yield from self._read_citation(index, citation)

    def _read_citation(self, index: int, citation: Mapping[str, Any]) -> Iterator[AnswerValue]:
        if isinstance(citation.get("url"), str):
            run = [place for place, first in self._text_runs.items() if first == self._text_runs.get(index)]
            lengths = [len(str(self._build_block(place).get("text", ""))) for place in run if place <= index]
            fields = {"url": citation["url"], "title": citation.get("title") or citation["url"]}
            place = {"start_index": sum(lengths[:-1]), "end_index": sum(lengths)}
            yield Citation({**fields, **place}, self._text_runs.get(index, index))


def translate_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a usage object to the form of the log: its prompt tokens include those of the cache."""
    written, read = (usage.get(name) or 0 for name in CACHE_COUNTS)
    prompt_tokens, output_tokens = usage["input_tokens"] + written + read, usage.get("output_tokens") or 0
    details = {"cached_tokens": read, "cache_write_tokens": written}
    by_lifetime = {"cache_creation": usage["cache_creation"]} if usage.get("cache_creation") else {}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": details,
        **by_lifetime,
    }
