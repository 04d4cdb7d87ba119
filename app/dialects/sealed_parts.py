"""Finds the parts of a message that only the model can read from which they come: encrypted reasoning, and signed or
encrypted thinking. Pure."""

from __future__ import annotations

from typing import Final

from app.dialects.item_decoding import decode_item
from app.dialects.messages.message_rendering import list_message_seals
from app.dialects.responses.message import ResponsesMessage

THINKING_MARKERS: Final = (b'"signature"', b'"redacted_thinking"')
"""A message of Chat Completions or of the Messages API without these bytes has no sealed thinking."""


def has_sealed_parts(raw: bytes) -> bool:
    """Returns whether a message of the log may have sealed parts. False is certain."""
    if raw[:1] == b"[":
        return b'"encrypted_content"' in raw
    return any(marker in raw for marker in THINKING_MARKERS)


def list_sealed_parts(raw: bytes) -> list[str]:
    """Returns the encrypted contents, signatures and encrypted thinking of a message."""
    if not has_sealed_parts(raw):
        return []
    message = decode_item(raw)
    if not isinstance(message, ResponsesMessage):
        return list_message_seals(message)
    items = [item for item in message.items if isinstance(item, dict)]
    contents = [item["encrypted_content"] for item in items if item.get("encrypted_content")]
    return [*contents, *list_message_seals(message)]
