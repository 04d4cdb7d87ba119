"""A message of the Responses API as an `Item`: a run of items that belong together.

The log's unit is the message: what a user says, the result of a call, or everything that a model says in one answer
(reasoning, text, calls). The Responses API splits such a message into items. Its raw text is a JSON array with the
items exactly as they came; the `instructions` field of a request is an array with that one string. The first byte tells
such a text from that of a chat message, which is an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import orjson

from app.conversation.item import EditOperation, Item, ToolCall
from app.conversation.json_text import list_objects
from app.dialects.body.message import BodyMessage, ChatMessage, build_hosted_call
from app.dialects.body.message_edits import apply_operations
from app.dialects.items.chat_form import build_chat_form
from app.dialects.items.item_edits import OPERATIONS
from app.dialects.items.item_kinds import CALL_OUTPUT_TYPES, OUTPUT_TYPES, read_type
from app.errors import InvalidRequest

READABLE_TYPES: Final = frozenset({"message", "reasoning", *CALL_OUTPUT_TYPES, *OUTPUT_TYPES})
"""Types of items that the chat form has as text, reasoning, calls or results."""
UNREADABLE_FIELDS: Final = frozenset({"id", "type", "status", "encrypted_content", "result"})
"""Fields of other items that say nothing to people: ids, encrypted content, the bytes of an image."""
EMPTY_ANSWER: Final[Mapping[str, Any]] = {"role": "assistant", "content": ""}
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ResponsesMessage(BodyMessage):
    """A run of items that make up one message."""

    __slots__ = ()

    @classmethod
    def from_items(cls, items: Sequence[dict[str, Any] | str]) -> Self:
        """Returns a message that the gateway makes itself."""
        return cls(orjson.dumps(items))

    @classmethod
    def from_raw_items(cls, raw_items: Sequence[bytes]) -> Self:
        """Returns the message of items that belong together, each with its bytes."""
        return cls(b"[" + b",".join(raw_items) + b"]")

    @property
    def raw_items(self) -> list[bytes]:
        """The JSON text of each item.

        Raises:
            InvalidRequest: the text is not a JSON array.
        """
        try:
            return [bytes(raw) for raw in _decode_array(self.raw)]
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"An input item is not valid JSON: {error}.", param="input") from error

    @property
    def items(self) -> list[dict[str, Any] | str]:
        """The decoded items.

        Raises:
            InvalidRequest: the text is not a JSON array.
        """
        try:
            decoded = orjson.loads(self.raw)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"An input item is not valid JSON: {error}.", param="input") from error
        if not isinstance(decoded, list):
            raise InvalidRequest("`input` must be an array of items.", code="invalid_type", param="input")
        return decoded

    @property
    def body(self) -> dict[str, Any]:
        if self._body is None:
            self._body = build_chat_form(self.items)
        return self._body

    @property
    def hosted_calls(self) -> list[ToolCall]:
        if self.role != "assistant":
            return []
        return [
            build_hosted_call(item, read_type(item), UNREADABLE_FIELDS)
            for item in list_objects(self.items)
            if read_type(item) not in READABLE_TYPES
        ]

    def edit(self, operations: Sequence[EditOperation]) -> Self:
        return self.from_items(apply_operations(OPERATIONS, self.items, operations))


def build_items_message(items: Sequence[bytes]) -> Item:
    """Returns an answer of these items, each with its bytes, as the log keeps it."""
    return ResponsesMessage.from_raw_items(items) if items else ChatMessage.from_body(dict(EMPTY_ANSWER))
