"""Decodes answers of Chat Completions: assembles message, usage and finish reason, and makes values if they are wanted.
Pure.

Chunks are read without types, so that no field of a message is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from app.conversation.json_text import list_objects
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue, Begin, Failure, Other, Usage
from app.dialects.body.message import ChatMessage
from app.dialects.chat.choice_collector import ChoiceCollector
from app.dialects.chat.choice_values import PROTOCOL, ChoiceValues
from app.dialects.chat.stream_frames import ERROR_EVENT
from app.dialects.provider_json import decode_leniently, decode_object, join_surrogates
from app.dialects.sse import DONE_DATA

SAID_MEMBERS: Final = frozenset({"id", "object", "created", "model", "choices", "usage", "x_groq"})
"""Members of a chunk that values say, or that make no sense in joined answers."""
SAID_FIELDS: Final = frozenset({"role", "content", "reasoning_content", "refusal", "tool_calls", "annotations"})
"""Fields of a message that values say in full; of calls, see `ChoiceValues`."""
_HAS_LOGPROBS: Final = re.compile(rb'"logprobs"\s*:\s*\{').search


class ChatStreamDecoder(AnswerDecoder):
    """Decodes a completion, chunk by chunk.

    Attributes:
        id, model: from the first chunk that has one.
        usage: the last one reported, with integers beyond 64 bits as floats; None if there was none.
        error_data: the data with a top-level `error`, or of an error object; None if there was none.
        chunk_count: how many chunks were added.
        first_choice: choice 0, as far as it has come.
    """

    protocol = "openai"

    def __init__(self, source_name: str = "upstream") -> None:
        super().__init__(source_name)
        self.first_choice = ChoiceCollector()
        self._choices: dict[int, ChoiceCollector] = {0: self.first_choice}
        self._has_split_surrogates = False
        """Whether halves of surrogate pairs have come. They cannot be encoded as UTF-8, so they must be joined
        first."""
        self._values: dict[int, ChoiceValues] = {}
        self._waiting_logprobs: dict[int, list[Any]] = {}
        """Log probabilities that belong to the next piece of text, by choice."""
        self.chunk_count = 0

    def add_chunk(self, data: bytes) -> bool:
        """Adds the data of one event, except `[DONE]`. Returns whether the chunk has a choice.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """
        self.chunk_count += 1
        chunk, is_lenient = decode_leniently(data, repr(self._source_name))
        self._has_split_surrogates = self._has_split_surrogates or is_lenient
        fields = join_surrogates(chunk) if is_lenient else chunk
        error = fields if fields.get("object") == "error" else fields.get("error")
        if error is not None:
            self.error_data = data
        if self.id is None:
            completion_id, model = fields.get("id"), fields.get("model")
            self.id = completion_id if isinstance(completion_id, str) and completion_id else None
            if self.model is None and isinstance(model, str):
                self.model = model or None
        usage, x_groq = fields.get("usage"), fields.get("x_groq")
        if not usage or not isinstance(usage, dict):
            usage = x_groq.get("usage") if isinstance(x_groq, dict) else None
        if isinstance(usage, dict):
            self.usage = usage
        choices = chunk.get("choices")
        for choice in list_objects(choices):
            self._add_choice(choice)
        return bool(choices)

    def add_whole(self, body: bytes) -> None:
        self.add_chunk(body)

    def decode(self, data: bytes, name: bytes = b"") -> list[AnswerValue]:
        if data == DONE_DATA:
            self.has_ended = True
            return []
        usage_before, is_first = self.usage, self.chunk_count == 0
        self.add_chunk(data)
        if self.error_data is not None or name == ERROR_EVENT:
            self.error_data = self.error_data or data
            return [Failure(self.error_data)]
        values = [*self._read_others(data), *self._read_new_values(data)]
        if self.usage is not None and self.usage is not usage_before:
            values.append(Usage(self.usage))
        return [self._build_begin(data), *values] if is_first else values

    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        usage = [] if self.usage is None else [Usage(self.usage)]
        values = [self._build_begin(body), *self._read_others(body)]
        values += [*self._read_new_values(body), *self.decode_rest()]
        return [*values, *usage]

    @property
    def has_awaited_call(self) -> bool:
        return any(reader.has_awaited_call(self.awaited_name) for reader in self._values.values())

    def decode_rest(self) -> list[AnswerValue]:
        return [value for reader in self._values.values() for value in reader.read_rest()]

    def _build_begin(self, data: bytes) -> Begin:
        created = decode_object(data).get("created")
        return Begin(self.id, created if isinstance(created, int) else None, self.model)

    def _read_others(self, data: bytes) -> list[AnswerValue]:
        """Reads the fields of a chunk or a whole answer that no value says, or not in full."""
        if not self.tells_others:
            return []
        members = decode_object(data)
        others: list[AnswerValue] = []
        if fields := {name: member for name, member in members.items() if name not in SAID_MEMBERS}:
            others.append(Other(PROTOCOL, fields, choice=None))
        for choice in list_objects(members.get("choices")):
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict) and (
                fields := {
                    name: field for name, field in delta.items() if name not in SAID_FIELDS and field is not None
                }
            ):
                others.append(Other(PROTOCOL, fields, choice=choice.get("index") or 0))
        return others

    def _read_new_values(self, data: bytes) -> list[AnswerValue]:
        if _HAS_LOGPROBS(data) is not None:
            for number, logprobs in _read_logprobs(data):
                self._waiting_logprobs.setdefault(number, []).extend(logprobs)
        values: list[AnswerValue] = []
        for number, choice in self._choices.items():
            if (reader := self._values.get(number)) is None:
                reader = self._values[number] = ChoiceValues(choice, number, tells_others=self.tells_others)
            awaited_name = None if self.holds_names else self.awaited_name
            values += reader.read_new(self._waiting_logprobs.setdefault(number, []), awaited_name)
        return values

    def build_message(self, choice: ChoiceCollector | None = None) -> dict[str, Any]:
        """Returns the assistant message of a choice, or else of choice 0, as a client sends it back."""
        message = (choice or self.first_choice).build_message()
        return join_surrogates(message) if self._has_split_surrogates else message

    def build_item(self) -> ChatMessage:
        return ChatMessage.from_body(self.build_message())

    def build_alternatives(self) -> list[dict[str, Any]]:
        return [self.build_message(self._choices[index]) for index in sorted(self._choices) if index != 0]

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        if index not in self._choices:
            self._choices[index] = ChoiceCollector()
            # A choice that begins after another has ended reopens the answer.
            self.is_complete = False
        collector = self._choices[index]
        for delta in (choice.get("delta"), choice.get("message")):
            if isinstance(delta, dict):
                collector.add_delta(delta)
                self.has_content = self.has_content or collector.has_content
        reason = choice.get("finish_reason")
        if reason:
            collector.finish_reason = str(join_surrogates(reason) if self._has_split_surrogates else reason)
            self.finish = self.first_choice.finish_reason
            self.is_complete = all(one.finish_reason is not None for one in self._choices.values())


def _read_logprobs(data: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Reads the log probabilities of each choice of a chunk or a whole answer."""
    for choice in join_surrogates(decode_object(data)).get("choices") or ():
        match choice:
            case {"logprobs": {"content": list(tokens)}}:
                yield choice.get("index") or 0, [token for token in tokens if isinstance(token, dict)]
