"""An answer that was joined from several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversation.item import Item
from app.dialects.answer_decoding import Answer
from app.dialects.answer_events import AnswerValue, Begin, CallBegin, Failure, Finish, Refusal, Text, Usage
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_encoder import BodyAssembler


class AssembledAnswer(Answer):
    """An answer that was joined from several.

    Args:
        values: what an answer says that is not streamed.
    """

    def __init__(self, values: Sequence[AnswerValue] = ()) -> None:
        self._values = values
        self._body = BodyAssembler()
        self.add(values)

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
