"""Writes the events of a Responses stream: numbered, and each with the line that names its type. Pure.

An answer's output is a list of items. An item is added, grows, and is done. A text that grows (a part of a message or
of a reasoning, the arguments of a call) comes in deltas, then whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

Item = dict[str, Any]

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
CONTENT_PART: Final = "response.content_part"
SUMMARY_PART: Final = "response.reasoning_summary_part"
REPLACEMENT_CHARACTER: Final = "\ufffd"
"""Stands for half of a surrogate pair whose other half never comes."""

_encode: Final = msgspec.json.Encoder().encode


class TextKind(msgspec.Struct, frozen=True):
    """One kind of texts that grow."""

    event: str
    """The type of its events, without `.delta` and `.done`."""
    field: str
    """The field of its part, item and done event that has the whole text."""
    part: Mapping[str, Any] | None = None
    """A part without text; None if the text is a field of the item."""
    part_event: str = CONTENT_PART
    index_name: str = "content_index"
    list_name: str = "content"
    """The item's list of such parts."""
    event_fields: Mapping[str, Any] = {}
    """Further fields of its events."""


OUTPUT_TEXT: Final = TextKind(
    "response.output_text",
    "text",
    {"type": "output_text", "annotations": [], "logprobs": [], "text": ""},
    event_fields={"logprobs": []},
)
REFUSAL: Final = TextKind("response.refusal", "refusal", {"type": "refusal", "refusal": ""})
REASONING_TEXT: Final = TextKind("response.reasoning_text", "text", {"type": "reasoning_text", "text": ""})
SUMMARY_TEXT: Final = TextKind(
    "response.reasoning_summary_text",
    "text",
    {"type": "summary_text", "text": ""},
    SUMMARY_PART,
    "summary_index",
    "summary",
)
PART_KINDS: Final = {
    "output_text": OUTPUT_TEXT,
    "refusal": REFUSAL,
    "reasoning_text": REASONING_TEXT,
    "summary_text": SUMMARY_TEXT,
}
"""By the type of the part."""
CALL_KINDS: Final = {
    "function_call": TextKind("response.function_call_arguments", "arguments"),
    "custom_tool_call": TextKind("response.custom_tool_call_input", "input"),
}
"""By the type of the item."""


class EventWriter:
    """Writes the events of one stream.

    Attributes:
        next_number: the sequence number of the next event.
    """

    def __init__(self) -> None:
        self.next_number = 0

    def write_event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """Writes an event. `fields` may hold `msgspec.Raw`."""
        data = _encode({"type": kind, "sequence_number": self.next_number, **fields})
        return self.write_data(kind.encode(), data)

    def write_data(self, kind: bytes, data: bytes) -> bytes:
        """Writes an event whose data has the next number already."""
        self.next_number += 1
        return b"event: %b\ndata: %b\n\n" % (kind, data)


class GrowingText:
    """A text of which deltas come.

    Args:
        place: fields of its events that name the item and the part.
    """

    def __init__(self, kind: TextKind, place: Mapping[str, Any], writer: EventWriter) -> None:
        self.kind = kind
        self.place = place
        self.pieces: list[str] = []
        self.annotations: list[Any] = []
        self.logprobs: list[Any] = []
        self.is_done = False
        """Whether the event with the whole text was written."""
        self._half = ""
        """The first half of a surrogate pair, kept until the other half comes: alone it cannot be encoded."""
        self._writer = writer

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def write_delta(self, piece: str, logprobs: Sequence[Any] = ()) -> bytes:
        """Writes an event with the next piece.

        Args:
            logprobs: the logarithmic probabilities of its tokens; only an output text has any.
        """
        piece, self._half = join_halves(self._half + piece)
        if not piece:
            return b""
        self.pieces.append(piece)
        self.logprobs += logprobs
        fields = {**self.place, "delta": piece, **self.kind.event_fields}
        if logprobs:
            fields["logprobs"] = logprobs
        return self._writer.write_event(f"{self.kind.event}.delta", fields)

    def write_done(self) -> bytes:
        """Writes the event with the whole text, unless it was written."""
        if self.is_done:
            return b""
        last_delta = b""
        if self._half:
            self._half = ""
            last_delta = self.write_delta(REPLACEMENT_CHARACTER)
        self.is_done = True
        fields = {**self.place, self.kind.field: self.text, **self.kind.event_fields}
        if self.logprobs:
            fields["logprobs"] = self.logprobs
        return last_delta + self._writer.write_event(f"{self.kind.event}.done", fields)


class OpenItem:
    """An item that was added and is not done.

    Args:
        item: the item as it was added; it grows.
        index: its place in the response's `output`.
    """

    def __init__(self, item: Item, index: int, writer: EventWriter) -> None:
        self.item = item
        self.index = index
        self.text: GrowingText | None = None
        """The text that grows now."""
        self._writer = writer

    def write_added(self) -> bytes:
        return self._writer.write_event("response.output_item.added", {"output_index": self.index, "item": self.item})

    def begin_text(self, kind: TextKind) -> GrowingText:
        """Begins a text, without its event."""
        place = {"item_id": self.item["id"], "output_index": self.index}
        if kind.part is not None:
            place[kind.index_name] = len(self.item.setdefault(kind.list_name, []))
        self.text = GrowingText(kind, place, self._writer)
        return self.text

    def write_text_begin(self, kind: TextKind) -> tuple[bytes, GrowingText]:
        """Begins a text after the one before it has ended. Returns the frames and the text."""
        frames = self.write_text_end()
        text = self.begin_text(kind)
        if kind.part is not None:
            frames += self._writer.write_event(f"{kind.part_event}.added", {**text.place, "part": kind.part})
        return frames, text

    def write_annotation(self, annotation: Mapping[str, Any]) -> bytes:
        """Adds an annotation to the text that grows now; nothing if none grows."""
        if self.text is None:
            return b""
        fields = {**self.text.place, "annotation_index": len(self.text.annotations), "annotation": annotation}
        self.text.annotations.append(annotation)
        return self._writer.write_event("response.output_text.annotation.added", fields)

    def write_text_end(self) -> bytes:
        """Ends the text that grows now, if there is one."""
        text = self.text
        if text is None:
            return b""
        self.text = None
        frames = text.write_done()
        if text.kind.part is None:
            self.item[text.kind.field] = text.text
            return frames
        part = {**text.kind.part, text.kind.field: text.text}
        if text.annotations:
            part["annotations"] = text.annotations
        if text.logprobs:
            part["logprobs"] = text.logprobs
        self.item[text.kind.list_name].append(part)
        return frames + self._writer.write_event(f"{text.kind.part_event}.done", {**text.place, "part": part})

    def write_done(self, status: str) -> bytes:
        """Ends the item. A provider's item may have no status; then it gets none."""
        frames = self.write_text_end()
        if "status" in self.item:
            self.item["status"] = status
        return frames + self._writer.write_event(
            "response.output_item.done", {"output_index": self.index, "item": self.item}
        )

    def begin_call_text(self) -> None:
        """Begins the text of a call, unless it has begun."""
        kind = CALL_KINDS.get(self.item["type"])
        if self.text is None and kind is not None:
            self.begin_text(kind)

    def apply_event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Adds to the item what an event of a Responses provider says, so that the item can be ended if the provider's
        stream breaks off. Events of hosted tools change nothing."""
        if kind in (f"{CONTENT_PART}.added", f"{SUMMARY_PART}.added"):
            part_kind = PART_KINDS.get(event["part"]["type"])
            if part_kind is not None:
                self.begin_text(part_kind)
        elif kind in (f"{CONTENT_PART}.done", f"{SUMMARY_PART}.done"):
            list_name = "content" if kind.startswith(CONTENT_PART) else "summary"
            self.item.setdefault(list_name, []).append(event["part"])
            self.text = None
        elif kind.endswith((".delta", ".done")):
            self.begin_call_text()
            text = self.text
            if text is None or kind.rpartition(".")[0] != text.kind.event:
                return
            if kind.endswith(".done"):
                text.is_done, text.pieces = True, [event[text.kind.field]]
            else:
                text.pieces.append(event["delta"])


def write_whole_item(item: Item, index: int, writer: EventWriter) -> bytes:
    """Writes all events of an item that is complete."""
    empty = dict(item)
    if "status" in empty:
        empty["status"] = IN_PROGRESS
    call_kind = CALL_KINDS.get(item["type"])
    part_lists = [kind.list_name for kind in (SUMMARY_TEXT, OUTPUT_TEXT) if item.get(kind.list_name)]
    empty |= {name: [] for name in part_lists}
    if call_kind is not None:
        empty[call_kind.field] = ""
    open_item = OpenItem(empty, index, writer)
    frames = [open_item.write_added()]
    if call_kind is not None:
        text = open_item.begin_text(call_kind)
        frames += [text.write_delta(item[call_kind.field]), text.write_done()]
    for list_name in part_lists:
        for part in item[list_name]:
            frames.append(_write_whole_part(open_item, part))
    done_fields = {"output_index": index, "item": item}
    return b"".join(frames) + writer.write_event("response.output_item.done", done_fields)


def _write_whole_part(open_item: OpenItem, part: Mapping[str, Any]) -> bytes:
    kind = PART_KINDS.get(part["type"])
    if kind is None:
        return b""
    begin, text = open_item.write_text_begin(kind)
    frames = [begin, text.write_delta(part[kind.field], part.get("logprobs") or ())]
    frames += [open_item.write_annotation(annotation) for annotation in part.get("annotations", ())]
    return b"".join(frames) + open_item.write_text_end()


def join_halves(text: str) -> tuple[str, str]:
    """Joins the halves of surrogate pairs. Returns the text, and a first half at its end whose other half may follow.
    A half that stays alone becomes U+FFFD."""
    half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
    whole = text.removesuffix(half) if half else text
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half
