"""Tells in which protocol a stored or sent message was written, and reads it as an `Item`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.items.message import ResponsesMessage

INSTRUCTIONS_BEGIN: Final = b'["'
"""How the raw text of a message begins that is the `instructions` field of a request."""


def decode_item(raw: bytes) -> Item:
    """Returns the message of a JSON text: an array holds items of the Responses API, anything else is a chat
    message."""
    return ResponsesMessage(raw) if raw[:1] == b"[" else ChatMessage(raw)


def is_instructions_field(raw: bytes) -> bool:
    """Returns whether a message is the `instructions` field of a request, which holds for one response only."""
    return raw.startswith(INSTRUCTIONS_BEGIN)


def select_lasting_instructions(raws: Sequence[str]) -> list[str]:
    """Returns the leading system and developer messages that hold for the following responses, too."""
    return [raw for raw in raws if not is_instructions_field(raw.encode())]
