"""Finds the parts of a message that only the model can read from which they come: encrypted reasoning, and signed or
encrypted thinking. Pure."""

from __future__ import annotations

from typing import Final

from app.dialects.item_decoding import decode_item
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message_rendering import list_message_seals

THINKING_MARKERS: Final = (b'"signature"', b'"redacted_thinking"')
"""A message of Chat Completions or of the Messages API without these bytes has no sealed thinking."""


def has_sealed_parts(raw: bytes, provider_protocol: str) -> bool:
    """Returns whether an answer of the log may have sealed parts. False is certain.

    Args:
        provider_protocol: the protocol of the provider that wrote it. Providers of Chat Completions do not tell which
            parts of theirs are sealed.
    """
    if raw[:1] == b"[":
        return b'"encrypted_content"' in raw
    return provider_protocol != "openai" and any(marker in raw for marker in THINKING_MARKERS)


def list_sealed_parts(raw: bytes) -> list[str]:
    """Returns the encrypted contents, signatures and encrypted thinking of a message."""
    message = decode_item(raw)
    if not isinstance(message, ResponsesMessage):
        return list_message_seals(message)
    items = [item for item in message.items if isinstance(item, dict)]
    contents = [item["encrypted_content"] for item in items if item.get("encrypted_content")]
    return [*contents, *list_message_seals(message)]
