"""Writes the events of an answer's items while the chat chunks of the answer are collected. Pure.

The collector says what has come. So the events and the stored answer have the same texts and calls, however the
provider has cut them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.dialects.chat.choice_collector import ChoiceCollector
from app.dialects.chat.item_parts import convert_citation, read_reasoning_text
from app.dialects.chat.message_fields import is_reasoning_part
from app.dialects.chat.stream_collector import join_surrogates
from app.dialects.chat.stream_frames import decode_chunk
from app.dialects.chat.tool_call_collector import PartialToolCall
from app.dialects.responses.chat_message_items import ID_PREFIXES
from app.dialects.responses.item_ids import derive_item_id
from app.dialects.responses.response_object import ResponseObject
from app.dialects.responses.stream_events import (
    CALL_KINDS,
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    OUTPUT_TEXT,
    REASONING_TEXT,
    REFUSAL,
    SUMMARY_TEXT,
    EventWriter,
    Item,
    OpenItem,
    TextKind,
)

REASONING_TEXTS: Final = ("reasoning_content", "reasoning")
"""Fields of a message that hold reasoning as text. A provider that sends both says the same in both."""
REASONING_BLOCKS: Final = ("reasoning_details", "thinking_blocks")
"""Fields of a message that hold reasoning as blocks, read if there is no text."""

LOGPROBS_KEY: Final = b'"logprobs"'
"""Data without this key has no logarithmic probabilities."""


class _WrittenCall:
    """What was written of one call."""

    __slots__ = ("open_item", "taken")

    def __init__(self) -> None:
        self.open_item: OpenItem | None = None
        """None until the call's name has come."""
        self.taken = 0
        """How many pieces of the arguments, or characters of the input, were written."""


class OutputWriter:
    """Writes the items of one answer.

    Args:
        response: gives the items their ids.
        choice: collects the answer.
        events: numbers the events.
        tool_names: the namespace and the name of each tool in a namespace, by the name that the provider uses.

    Attributes:
        items: by output index. An item that is not done grows.
    """

    def __init__(
        self,
        response: ResponseObject,
        choice: ChoiceCollector,
        events: EventWriter,
        tool_names: Mapping[str, tuple[str, str]],
    ) -> None:
        self.items: list[Item] = []
        self._response = response
        self._choice = choice
        self._events = events
        self._tool_names = tool_names
        self._open: OpenItem | None = None
        """The message or the reasoning that grows."""
        self._calls: list[_WrittenCall] = []
        self._last_item: Item | None = None
        """The item to which something was added last."""
        self._text_count = 0
        self._part_count = 0
        self._refusal_count = 0
        self._reasoning_count = 0
        self._reasoning_name: str | None = None
        """The field that the reasoning is read from."""
        self._reasoning_place: tuple[Any, Any] | None = None
        """Type and index of the block of reasoning that came last."""
        self._annotation_count = 0
        self._new_logprobs: list[Any] = []
        """Logarithmic probabilities that belong to the next piece of text."""

    def write_new_content(self, logprobs: Sequence[Any] = ()) -> bytes:
        """Writes what has come since the last call.

        Args:
            logprobs: the logarithmic probabilities of the tokens of the new text.
        """
        choice = self._choice
        if logprobs:
            self._new_logprobs += logprobs
        if not choice.text_fields and choice.tool_calls is None and not choice.content_parts and not choice.list_fields:
            return self._write_new_text(choice)  # as nearly every chunk
        frames = [self._write_new_reasoning(choice), self._write_new_text(choice)]
        if "refusal" in choice.text_fields:
            pieces = choice.text_fields["refusal"]
            frames.append(self._write_text(REFUSAL, "".join(pieces[self._refusal_count :])))
            self._refusal_count = len(pieces)
        if choice.list_fields and self._open is not None:
            annotations = choice.list_fields.get("annotations", ())
            citations = map(convert_citation, annotations[self._annotation_count :])
            frames += [self._open.write_annotation(join_surrogates(one)) for one in citations if one is not None]
            self._annotation_count = len(annotations)
        if choice.tool_calls is not None:
            calls = choice.tool_calls.partial_calls
            frames += [self._write_new_call_text(number, call) for number, call in enumerate(calls)]
        return b"".join(frames)

    def write_end(self, *, is_cut_off: bool) -> bytes:
        """Ends all items that are not done.

        Args:
            is_cut_off: the item that came last is incomplete.
        """
        frames = [self._end_open_item(is_cut_off=is_cut_off)]
        calls = self._choice.tool_calls.partial_calls if self._choice.tool_calls is not None else ()
        for written, call in zip(self._calls, calls, strict=False):  # a chunk with an error may have brought another
            if written.open_item is None:
                frames.append(self._begin_call(written, call) + self._write_call_text(written, call))
        open_items = [call.open_item for call in self._calls if call.open_item is not None]
        frames += [
            item.write_done(self._choose_status(item.item, is_cut_off=is_cut_off))
            for item in open_items
            if item.item["status"] == IN_PROGRESS
        ]
        return b"".join(frames)

    def _write_new_reasoning(self, choice: ChoiceCollector) -> bytes:
        if self._reasoning_name is None:
            fields = {**choice.text_fields, **choice.list_fields}
            self._reasoning_name = next(
                (name for name in (*REASONING_TEXTS, *REASONING_BLOCKS) if name in fields), None
            )
            if self._reasoning_name is None:
                return b""
        if self._reasoning_name in REASONING_BLOCKS:
            blocks = choice.list_fields[self._reasoning_name]
            new_blocks, self._reasoning_count = blocks[self._reasoning_count :], len(blocks)
            return b"".join([self._write_reasoning_block(block) for block in new_blocks if isinstance(block, dict)])
        pieces = choice.text_fields[self._reasoning_name]
        if len(pieces) == self._reasoning_count:
            return b""
        new_text, self._reasoning_count = "".join(pieces[self._reasoning_count :]), len(pieces)
        return self._write_text(REASONING_TEXT, new_text)

    def _write_reasoning_block(self, block: Mapping[str, Any]) -> bytes:
        """Writes a piece of OpenRouter's `reasoning_details` or of litellm's `thinking_blocks`. Pieces of one type and
        index are one text."""
        kind, text = REASONING_TEXT, block.get("text", block.get("thinking"))
        if not isinstance(text, str) and isinstance(block.get("summary"), str):
            kind, text = SUMMARY_TEXT, block["summary"]
        frames = self._begin_item("reasoning")
        assert self._open is not None
        if isinstance(block.get("data"), str) and not self._response.hides_encrypted_reasoning:
            self._open.item["encrypted_content"] = block["data"]
        if not isinstance(text, str):
            return frames
        place = (block.get("type"), block.get("index"))
        if place != self._reasoning_place:
            self._reasoning_place = place
            frames += self._open.write_text_end()
        return frames + self._write_text(kind, text)

    def _write_new_text(self, choice: ChoiceCollector) -> bytes:
        if choice.content_parts:
            return self._write_new_parts(choice.content_parts)
        pieces, taken = choice.text_pieces, self._text_count
        count = self._text_count = len(pieces)
        if count == taken:
            return b""
        return self._write_text(OUTPUT_TEXT, pieces[taken] if count == taken + 1 else "".join(pieces[taken:]))

    def _write_new_parts(self, parts: list[Any]) -> bytes:
        if self._text_count:
            # The collector has made the text before the first part a part of its own, unless it was empty.
            self._part_count, self._text_count = 1 if self._last_item is not None else 0, 0
        new_parts, self._part_count = parts[self._part_count :], len(parts)
        return b"".join([self._write_part(part) for part in new_parts if isinstance(part, dict)])

    def _write_part(self, part: Mapping[str, Any]) -> bytes:
        if is_reasoning_part(part):
            return self._write_text(REASONING_TEXT, read_reasoning_text(dict(part)))
        text = part.get("text")
        return self._write_text(OUTPUT_TEXT, text) if part.get("type") == "text" and isinstance(text, str) else b""

    def _write_text(self, kind: TextKind, piece: str) -> bytes:
        if not piece:
            return b""
        logprobs: list[Any] = []
        if self._new_logprobs and kind is OUTPUT_TEXT:
            logprobs, self._new_logprobs = self._new_logprobs, []
        item = self._open
        if item is not None and (text := item.text) is not None and text.kind is kind:
            self._last_item = item.item
            return text.write_delta(piece, logprobs)
        frames = self._begin_item("reasoning" if kind in (REASONING_TEXT, SUMMARY_TEXT) else "message")
        assert self._open is not None
        begin, text = self._open.write_text_begin(kind)
        return frames + begin + text.write_delta(piece, logprobs)

    def _begin_item(self, item_type: str) -> bytes:
        """Begins a message or a reasoning, unless one is open."""
        if self._open is not None and self._open.item["type"] == item_type:
            return b""
        frames = self._end_open_item(is_cut_off=False)
        body: Item = {"type": item_type, "status": IN_PROGRESS, "content": []}
        if item_type == "reasoning":
            body["summary"] = []
        else:
            body["role"] = "assistant"
        self._open = self._add_item(body)
        return frames + self._open.write_added()

    def _add_item(self, body: Item) -> OpenItem:
        index = len(self.items)
        item = {"id": derive_item_id(self._response.response_id, ID_PREFIXES[body["type"]], index), **body}
        self.items.append(item)
        self._last_item = item
        return OpenItem(item, index, self._events)

    def _end_open_item(self, *, is_cut_off: bool) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        return item.write_done(self._choose_status(item.item, is_cut_off=is_cut_off))

    def _choose_status(self, item: Item, *, is_cut_off: bool) -> str:
        return INCOMPLETE if is_cut_off and item is self._last_item else COMPLETED

    def _write_new_call_text(self, number: int, call: PartialToolCall) -> bytes:
        if number == len(self._calls):
            self._calls.append(_WrittenCall())
        written = self._calls[number]
        if written.open_item is not None:
            return self._write_call_text(written, call)
        # Its events name the call, so they wait for name and id; for an id that comes too late they do not wait.
        if not _read_call_name(call) or not (call.id or _read_new_call_text(call, 0)[1]):
            return b""
        return self._begin_call(written, call) + self._write_call_text(written, call)

    def _write_call_text(self, written: _WrittenCall, call: PartialToolCall) -> bytes:
        written.taken, new_text = _read_new_call_text(call, written.taken)
        if not new_text:
            return b""
        assert written.open_item is not None
        assert written.open_item.text is not None
        self._last_item = written.open_item.item
        return written.open_item.text.write_delta(new_text)

    def _begin_call(self, written: _WrittenCall, call: PartialToolCall) -> bytes:
        frames = self._end_open_item(is_cut_off=False)
        is_custom = call.other_fields.get("type") == "custom" or "custom" in call.other_fields
        item_type = "custom_tool_call" if is_custom else "function_call"
        kind = CALL_KINDS[item_type]
        call_id = call.id or derive_item_id(self._response.response_id, "call", len(self.items))
        body = {"type": item_type, "name": _read_call_name(call)}
        if body["name"] in self._tool_names:
            body["namespace"], body["name"] = self._tool_names[body["name"]]
        named = {"status": IN_PROGRESS, "call_id": join_surrogates(call_id), **body, kind.field: ""}
        written.open_item = self._add_item(named)
        frames += written.open_item.write_added()
        return frames + written.open_item.write_text_begin(kind)[0]


def _read_call_name(call: PartialToolCall) -> str:
    custom = call.other_fields.get("custom")
    name = custom.get("name") if isinstance(custom, dict) else call.name
    return str(join_surrogates(name)) if isinstance(name, str) else ""


def _read_new_call_text(call: PartialToolCall, taken: int) -> tuple[int, str]:
    """Returns how much of a call's text has come, and what of it is new."""
    custom = call.other_fields.get("custom")
    if isinstance(custom, dict):
        text = str(custom.get("input", ""))
        return len(text), text[taken:]
    pieces = call.argument_pieces
    return len(pieces), "".join(pieces[taken:])


def read_logprobs(data: bytes) -> list[dict[str, Any]]:
    """Reads the logarithmic probabilities of choice 0 from a chunk or a whole answer. What Chat Completions leaves out
    or has as null is an empty list."""
    body = join_surrogates(decode_chunk(data))
    found: list[Any] = []
    for choice in body.get("choices") or ():
        match choice:
            case {"logprobs": {"content": list(tokens)}} if not choice.get("index"):
                found += [{**token, "bytes": token.get("bytes") or []} for token in tokens if isinstance(token, dict)]
    for token in found:
        best_tokens = token.get("top_logprobs") or ()
        token["top_logprobs"] = [{**best, "bytes": best.get("bytes") or []} for best in best_tokens]
    return found
