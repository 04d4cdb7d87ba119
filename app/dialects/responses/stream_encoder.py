"""Writes values as the events of an answer's items. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.answer_events import (
    AnswerValue,
    CallBegin,
    CallText,
    Citation,
    Finish,
    Reasoning,
    Refusal,
    Sealed,
    Text,
)
from app.dialects.items.chat_message_items import ID_PREFIXES
from app.dialects.items.item_ids import derive_item_id
from app.dialects.items.item_kinds import is_client_call
from app.dialects.provider_json import join_surrogates
from app.dialects.responses.response_object import ResponseObject, find_incomplete_reason
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


class ResponsesStreamEncoder:
    """Writes the items of one answer: what choice 0 says.

    Args:
        response: gives the items their ids.
        events: numbers the events.
        tool_names: the namespace and the name of each tool in a namespace, by the name that the provider uses.

    Attributes:
        items: by output index. An item that is not done grows.
    """

    def __init__(
        self, response: ResponseObject, events: EventWriter, tool_names: Mapping[str, tuple[str, str]]
    ) -> None:
        self.items: list[Item] = []
        self._response = response
        self._events = events
        self._tool_names = tool_names
        self._open: OpenItem | None = None
        """The message or the reasoning that grows."""
        self._calls: dict[int, OpenItem] = {}
        self._last_item: Item | None = None
        """The item to which something was added last."""
        self._reasoning_place: tuple[Any, ...] | None = None
        """Block and part of the reasoning that came last."""
        self._waiting_citations: list[Citation] = []
        """Citations that came before the text."""

    def continue_after(self, items: list[Item], open_items: Sequence[OpenItem]) -> None:
        """Continues a stream of which the client has got items of the provider's.

        Args:
            open_items: those of the items that are not done.
        """
        self.items = items
        calls = [item for item in items if is_client_call(item)]
        for one in open_items:
            if one.item in calls:
                self._calls[calls.index(one.item)] = one
            else:
                self._open = one

    def encode(self, values: Sequence[AnswerValue]) -> bytes:
        """Writes the events that say values. The beginning and the end of the answer have none here."""
        if len(values) == 1 and type(value := values[0]) is Text and not value.choice:  # as nearly always
            return self._write_text(OUTPUT_TEXT, value.text, value.logprobs)
        frames = [self._write_value(value) for value in values if not getattr(value, "choice", 0)]
        if self._waiting_citations and self._open is not None:
            waiting, self._waiting_citations = self._waiting_citations, []
            frames += map(self._write_value, waiting)
        return b"".join(frames)

    def _write_value(self, value: AnswerValue) -> bytes:
        match value:
            case Text():
                return self._write_text(OUTPUT_TEXT, value.text, value.logprobs)
            case Reasoning():
                return self._write_reasoning(value)
            case Refusal():
                return self._write_text(REFUSAL, value.text)
            case CallBegin():
                return self._begin_call(value)
            case CallText():
                item = self._calls[value.call]
                assert item.text is not None
                self._last_item = item.item
                return item.text.write_delta(value.text)
            case Sealed():
                frames = b""
                if self._open is not None and "encrypted_content" in self._open.item:
                    frames = self._end_open_item(is_cut_off=False)
                frames += self._begin_item("reasoning")
                assert self._open is not None
                if not self._response.hides_encrypted_reasoning:
                    self._open.item["encrypted_content"] = value.data
                return frames
            case Citation() if self._open is None:
                self._waiting_citations.append(value)
            case Citation():
                assert self._open is not None
                return self._open.write_annotation(join_surrogates({"type": "url_citation", **value.fields}))
            case Finish():
                # A client can run the calls while the answer is stored.
                return self.write_end(is_cut_off=find_incomplete_reason(value.reason) is not None)
        return b""

    def write_end(self, *, is_cut_off: bool) -> bytes:
        """Ends all items that are not done.

        Args:
            is_cut_off: the item that came last is incomplete.
        """
        frames = [self._end_open_item(is_cut_off=is_cut_off)]
        frames += [
            item.write_done(self._choose_status(item.item, is_cut_off=is_cut_off))
            for item in self._calls.values()
            if item.item["status"] == IN_PROGRESS
        ]
        return b"".join(frames)

    def _write_reasoning(self, value: Reasoning) -> bytes:
        frames, place = b"", (value.block, value.part, value.is_summary)
        if not value.text:
            return self._begin_item("reasoning")
        if place != self._reasoning_place and self._open is not None and self._open.item["type"] == "reasoning":
            frames = self._open.write_text_end()
        self._reasoning_place = place
        return frames + self._write_text(SUMMARY_TEXT if value.is_summary else REASONING_TEXT, value.text)

    def _write_text(self, kind: TextKind, piece: str, logprobs: Sequence[Any] = ()) -> bytes:
        if not piece:
            return b""
        if logprobs:
            logprobs = _complete_logprobs(logprobs) if self._response.shows_logprobs else ()
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

    def _begin_call(self, value: CallBegin) -> bytes:
        frames = self._end_open_item(is_cut_off=False)
        item_type = "custom_tool_call" if value.is_custom else "function_call"
        kind = CALL_KINDS[item_type]
        call_id = value.id or derive_item_id(self._response.response_id, "call", len(self.items))
        body = {"type": item_type, "name": str(join_surrogates(value.name))}
        if body["name"] in self._tool_names:
            body["namespace"], body["name"] = self._tool_names[body["name"]]
        named = {"status": IN_PROGRESS, "call_id": join_surrogates(call_id), **body, kind.field: ""}
        item = self._calls[value.call] = self._add_item(named)
        frames += item.write_added()
        return frames + item.write_text_begin(kind)[0]


def _complete_logprobs(logprobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns log probabilities with all members that the Responses API requires. What a provider leaves out or has as
    null is an empty list."""
    found = [{**token, "bytes": token.get("bytes") or []} for token in logprobs]
    for token in found:
        best_tokens = token.get("top_logprobs") or ()
        token["top_logprobs"] = [{**best, "bytes": best.get("bytes") or []} for best in best_tokens]
    return found
