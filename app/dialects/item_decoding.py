"""Tells in which protocol a stored or sent message was written, and reads it as an `Item`. Pure."""

from __future__ import annotations

from app.conversation.item import Item
from app.dialects.chat.message import ChatMessage
from app.dialects.responses.message import ResponsesMessage


def decode_item(raw: bytes) -> Item:
    """Returns the message of a JSON text: an array holds items of the Responses API, anything else is a chat
    message."""
    return ResponsesMessage(raw) if raw[:1] == b"[" else ChatMessage(raw)
