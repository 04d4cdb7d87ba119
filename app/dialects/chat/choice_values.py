"""Reads what has come of one choice as values, while its deltas are collected. Pure.

The collector says what has come. So the values and the assembled message have the same texts and calls, however the
provider has cut them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.dialects.answer_events import (
    AnswerValue,
    CallBegin,
    CallText,
    Citation,
    Finish,
    Other,
    Reasoning,
    Refusal,
    Sealed,
    Text,
)
from app.dialects.body.message_fields import is_reasoning_part
from app.dialects.chat.choice_collector import ChoiceCollector
from app.dialects.chat.tool_call_collector import PartialToolCall
from app.dialects.items.item_parts import convert_citation, read_reasoning_text

REASONING_TEXTS: Final = ("reasoning_content", "reasoning")
"""Fields of a message that hold reasoning as text. A provider that sends both says the same in both."""
PROTOCOL: Final = "openai"
REASONING_BLOCKS: Final = ("reasoning_details", "thinking_blocks")
"""Fields of a message that hold reasoning as blocks, read if there is no text."""


class ChoiceValues:
    """Reads the values of one choice.

    Args:
        choice: collects the choice.
        number: the index of the choice.
        tells_others: as of `AnswerDecoder`; then other fields of reasoning than `reasoning_content` are no values.
    """

    def __init__(self, choice: ChoiceCollector, number: int, *, tells_others: bool = False) -> None:
        self._choice = choice
        self._reasoning_names = REASONING_TEXTS[:1] if tells_others else (*REASONING_TEXTS, *REASONING_BLOCKS)
        self._number = number
        self._text_count = 0
        self._taken: dict[str, int] = {}
        """How many pieces of each other field were read."""
        self._has_text = False
        self._reasoning_name: str | None = None
        """The field that the reasoning is read from."""
        self._reasoning_place: tuple[Any, Any] | None = None
        """Type and index of the block of reasoning that came last."""
        self._reasoning_part = 0
        self._begun_calls: dict[int, int] = {}
        """How many pieces of each call's text were read."""
        self._has_finished = False

    def read_new(self, logprobs: list[Any], awaited_name: str | None) -> Iterator[AnswerValue]:
        """Reads what has come since the last call.

        Args:
            logprobs: the log probabilities of the tokens of the new text; they are taken out when there is text.
            awaited_name: as of `AnswerDecoder.awaited_name`; None: every call waits for its name.
        """
        choice = self._choice
        yield from self._read_reasoning(choice)
        yield from self._read_text(choice, logprobs)
        if text := "".join(self._take_new("refusal", choice.text_fields)):
            yield Refusal(text, choice=self._number)
        for annotation in self._take_new("annotations", choice.list_fields):
            if (citation := convert_citation(annotation)) is not None:
                del citation["type"]
                yield Citation(citation, choice=self._number)
        for number, call in enumerate(self._list_calls()):
            yield from self._read_call(number, call, awaited_name, is_last=choice.finish_reason is not None)
        if choice.finish_reason is not None and not self._has_finished:
            self._has_finished = True
            yield Finish(choice.finish_reason, self._number)

    def has_awaited_call(self, awaited_name: str) -> bool:
        """Returns whether a call has begun that no value tells of, and that may be one of a tool of this name."""
        return any(
            number not in self._begun_calls and awaited_name.startswith(call.name)
            for number, call in enumerate(self._list_calls())
        )

    def read_rest(self) -> Iterator[AnswerValue]:
        """Reads the calls that were held back, when the stream has ended without a finish reason."""
        for number, call in enumerate(self._list_calls()):
            yield from self._read_call(number, call, is_last=True)

    def _list_calls(self) -> Sequence[PartialToolCall]:
        return () if self._choice.tool_calls is None else self._choice.tool_calls.calls

    def _read_text(self, choice: ChoiceCollector, logprobs: list[Any]) -> Iterator[AnswerValue]:
        if choice.content_parts:
            if self._text_count:
                # The collector has made the text before the first part a part of its own, unless it was empty.
                self._taken["content"], self._text_count = int(self._has_text), 0
            for part in self._take_new("content", {"content": choice.content_parts}):
                if is_reasoning_part(part):
                    if text := read_reasoning_text(part):
                        yield Reasoning(text, choice=self._number)
                elif isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                    yield from self._build_text(part["text"], logprobs)
            return
        pieces, taken = choice.text_pieces, self._text_count
        count = self._text_count = len(pieces)
        if count != taken:
            yield from self._build_text(pieces[taken] if count == taken + 1 else "".join(pieces[taken:]), logprobs)

    def _take_new(self, name: str, fields: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        """Returns the pieces of a field that have come since the last call."""
        pieces = fields.get(name, ())
        taken, self._taken[name] = self._taken.get(name, 0), len(pieces)
        return pieces[taken:]

    def _build_text(self, text: str, logprobs: list[Any]) -> Iterator[AnswerValue]:
        if text:
            self._has_text = True
            yield Text(text, choice=self._number, logprobs=tuple(logprobs))
            logprobs.clear()

    def _read_reasoning(self, choice: ChoiceCollector) -> Iterator[AnswerValue]:
        if self._reasoning_name is None:
            fields = {**choice.text_fields, **choice.list_fields}
            self._reasoning_name = next((name for name in self._reasoning_names if name in fields), None)
            if self._reasoning_name is None:
                return
        if self._reasoning_name in REASONING_BLOCKS:
            for block in self._take_new(self._reasoning_name, choice.list_fields):
                if isinstance(block, dict):
                    yield from self._read_reasoning_block(block)
        elif text := "".join(self._take_new(self._reasoning_name, choice.text_fields)):
            yield Reasoning(text, choice=self._number)

    def _read_reasoning_block(self, block: Mapping[str, Any]) -> Iterator[AnswerValue]:
        """Reads a piece of OpenRouter's `reasoning_details` or of litellm's `thinking_blocks`. Pieces of one type and
        index are one text."""
        text, is_summary = block.get("text", block.get("thinking")), False
        if not isinstance(text, str) and isinstance(block.get("summary"), str):
            text, is_summary = block["summary"], True
        if isinstance(block.get("data"), str):
            yield Sealed("reasoning", block["data"], choice=self._number)
        elif not isinstance(text, str):
            yield Reasoning("", choice=self._number)
        if isinstance(text, str):
            place = (block.get("type"), block.get("index"))
            if place != self._reasoning_place:
                self._reasoning_place = place
                self._reasoning_part += 1
            yield Reasoning(text, part=self._reasoning_part, is_summary=is_summary, choice=self._number)

    def _read_call(
        self, number: int, call: PartialToolCall, awaited_name: str | None = "", *, is_last: bool
    ) -> Iterator[AnswerValue]:
        text = "".join(call.text_pieces[self._begun_calls.get(number, 0) :])
        # Its beginning names the call, so it waits for name and id; for an id that comes too late it does not wait.
        # Some servers send a name in several fragments. Arguments come after the name: with them it is complete.
        name = call.name
        is_whole = awaited_name is not None and not awaited_name.startswith(name)
        is_named = bool(name and (text or (call.id and is_whole)))
        if number not in self._begun_calls and not is_last and not is_named:
            return
        if number not in self._begun_calls:
            yield CallBegin(number, call.id or "", name, call.is_custom, self._number)
            if fields := {name: field for name, field in call.other_fields.items() if name not in ("type", "custom")}:
                yield Other(PROTOCOL, fields, number, self._number)
        self._begun_calls[number] = len(call.text_pieces)
        if text:
            yield CallText(number, text, self._number)
