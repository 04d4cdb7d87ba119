"""What a decoder of a provider's answers does. Each protocol that providers speak has one subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from app.conversation.item import Item
from app.conversation.json_text import decode_json_or
from app.dialects.answer_events import AnswerValue
from app.dialects.sse import SseEvent

BAD_GATEWAY: Final = 502
"""The status of an error that comes in an answer with status 200."""
PROTOCOL_FACTS: Final = "protocol_fields"
"""Key in the facts of an answer: fields of its protocol that tell what was cleared before the model read the prompt."""


class Answer(ABC):
    """One answer, as far as it has come.

    Attributes:
        protocol: the protocol of the provider; empty for an answer that was joined from several.
        id: the provider's id of the answer; None until it has come.
        model: the provider's name of the model.
        usage: what the provider counted, in the form of the log; None if it has counted nothing.
        finish: how choice 0 has ended, as of `answer_events.Finish`; None if it has not ended.
        is_complete: whether every choice that has begun has come to its end.
        has_content: whether anything has come that a user or program would see: text, a refusal, a call, audio.
        has_ended: whether the stream has said its last, or an error.
        error_data: a JSON object that says why the answer failed; None if it has not failed.
    """

    protocol = ""
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    finish: str | None = None
    is_complete = has_content = has_ended = False
    error_data: bytes | None = None

    def decode_rest(self) -> list[AnswerValue]:
        """Returns what was held back, after a stream that did not come to its end."""
        return []

    @abstractmethod
    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        """Returns what an answer says that is not streamed.

        Args:
            body: the provider's body, which was read before.
        """

    @abstractmethod
    def build_item(self) -> Item:
        """Returns choice 0 as a message of the provider's protocol, as the log keeps it."""

    def build_alternatives(self) -> list[dict[str, Any]]:
        """Returns the messages of all choices but choice 0, by index."""
        return []

    def build_facts(self) -> dict[str, Any]:
        """Returns the facts that are stored beside the answer."""
        return {"id": self.id, "model": self.model, "finish_reason": self.finish, "usage": self.usage}


class AnswerDecoder(Answer):
    """Decodes one answer: an event at a time, or whole.

    Args:
        source_name: the provider's name, for error messages.

    Attributes:
        awaited_name: the name of a tool. A call that may be one of this tool is told of when its name is complete.
        holds_names: whether that holds for every call.
        tells_others: whether what no value says is told by `Other`, for a client of the same protocol.
    """

    awaited_name = ""
    holds_names = tells_others = False

    def __init__(self, source_name: str = "upstream") -> None:
        self._source_name = source_name

    @property
    def has_awaited_call(self) -> bool:
        """Whether a call has begun of which no value tells yet, because it may be one of `awaited_name`. In most
        protocols a call begins with its whole name."""
        return False

    @abstractmethod
    def decode(self, data: bytes, name: bytes = b"") -> list[AnswerValue]:
        """Adds the data of one event and returns what it says. After a failure nothing more is said.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """

    @abstractmethod
    def add_whole(self, body: bytes) -> None:
        """Adds the body of an answer that is not streamed. One that is an error sets `error_data`.

        Raises:
            UpstreamUnavailable: the body is not an answer of this protocol.
        """


def drop_cut_events(events: Sequence[SseEvent], protocol: str) -> Sequence[SseEvent]:
    """Returns the last events of a stream without one that was cut off, if its protocol ends streams by an event of its
    own: then what is missing is noticed."""
    if protocol == "openai":
        return events
    return [one for one in events if decode_json_or(one.data or b"", None) is not None]
