"""An answer that was joined from several. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.conversation.item import Item
from app.dialects.answer_events import AnswerValue, Begin, CallBegin, Failure, Finish, Refusal, Text, Usage
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_encoder import BodyAssembler


class AssembledAnswer:
    """An answer that was joined from several. Implements `Answer`.

    Args:
        values: what an answer says that is not streamed.
    """

    def __init__(self, values: Sequence[AnswerValue] = ()) -> None:
        self.id: str | None = None
        self.model: str | None = None
        self.usage: dict[str, Any] | None = None
        self.finish: str | None = None
        self.error_data: bytes | None = None
        self.is_complete = self.has_ended = self.has_content = False
        self._values = values
        self._body = BodyAssembler()
        self.add(values)

    @property
    def protocol(self) -> str:
        return ""

    def add(self, values: Sequence[AnswerValue]) -> None:
        """Adds what the answer says."""
        for value in values:
            self._body.add(value)
            match value:
                case Begin():
                    self.id, self.model = value.id, value.model
                case Text() | Refusal() | CallBegin():
                    self.has_content = True
                case Usage():
                    self.usage = dict(value.counts)
                case Finish():
                    self.finish, self.is_complete = value.reason, True
                case Failure():
                    self.error_data, self.has_ended = value.body, True

    def build_item(self) -> Item:
        return ChatMessage.from_body(self._body.build())

    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        return [*self._values]

    def decode_rest(self) -> list[AnswerValue]:
        return []

    def build_alternatives(self) -> list[dict[str, Any]]:
        return []

    def build_facts(self) -> Mapping[str, Any]:
        return {"id": self.id, "model": self.model, "finish_reason": self.finish, "usage": self.usage}
