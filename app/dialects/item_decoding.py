"""Tells in which protocol a stored or sent message was written, and reads it as an `Item`. Pure."""

from __future__ import annotations

from app.conversation.item import Item
from app.dialects.chat.message import ChatMessage
from app.dialects.messages.message import MessagesMessage, is_messages_text
from app.dialects.responses.message import ResponsesMessage


def decode_item(raw: bytes) -> Item:
    """Returns the message of a JSON text: an array holds items of the Responses API, an object with `anthropic` a
    message of the Messages API, anything else is a chat message."""
    if raw[:1] == b"[":
        return ResponsesMessage(raw)
    return MessagesMessage(raw) if is_messages_text(raw) else ChatMessage(raw)
