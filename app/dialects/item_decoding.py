"""Tells in which protocol a stored or sent message was written, and reads it as an `Item`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from app.conversation.item import Item
from app.dialects.body.message import BodyMessage, ChatMessage, decode_body
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message import RAW_BEGIN, MessagesMessage

INSTRUCTIONS_BEGIN: Final = b'["'
"""How the raw text of a message begins that is the `instructions` field of a request."""


MESSAGE_CLASSES: Final[dict[bytes, Callable[[bytes], BodyMessage]]] = {b"[": ResponsesMessage, b"{": ChatMessage}
"""The class of a message by the first byte of its JSON text: an array holds items of the Responses API."""

ASSISTANT_MARKER: Final = b'"assistant"'
"""The JSON of every assistant message contains these bytes."""
ANSWER_ITEM_MARKERS: Final = (b'_call"', b'"reasoning"', b'"compaction"')
"""The JSON of a message of the Responses API that is an answer, but says no text, contains one of these."""


def decode_item(raw: bytes) -> Item:
    """Returns the message of a JSON text: an object with `anthropic` is a message of the Messages API. One that no
    protocol writes is read as a chat message."""
    if raw.startswith(RAW_BEGIN):
        return MessagesMessage(raw)
    return MESSAGE_CLASSES.get(raw[:1], ChatMessage)(raw)


def is_messages_text(raw: bytes) -> bool:
    """Says whether a raw text of the log or of a view is that of a message of the Messages API."""
    return raw.startswith(RAW_BEGIN)


def express_as_known(raws: Sequence[bytes]) -> list[bytes]:
    """Returns messages with those of protocols that no renderer knows as chat messages."""
    return [
        raw if raw[:1] in (b"{", b"[") else ChatMessage.from_body(decode_body(decode_item(raw))).raw
        for raw in map(bytes, raws)
    ]


def is_instructions_field(raw: bytes) -> bool:
    """Returns whether a message is the `instructions` field of a request, which holds for one response only."""
    return raw.startswith(INSTRUCTIONS_BEGIN)


def select_lasting_instructions(raws: Sequence[str]) -> list[str]:
    """Returns the leading system and developer messages that hold for the following responses, too."""
    return [raw for raw in raws if not is_instructions_field(raw.encode())]


def may_be_answer(raw: bytes) -> bool:
    """Returns whether the JSON text of a message may be that of an assistant message."""
    begin = raw[:1]
    is_items = begin == b"[" and any(marker in raw for marker in ANSWER_ITEM_MARKERS)
    return ASSISTANT_MARKER in raw or is_items or begin not in (b"[", b"{")
