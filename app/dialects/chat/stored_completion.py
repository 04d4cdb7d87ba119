"""Builds the objects of OpenAI's API for stored completions: the completion, and the messages of its request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.conversation.item import Item
from app.dialects.chat.message import decode_body
from app.dialects.chat.message_fields import extract_text

KEPT_PARAMETERS: Final = (
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "seed",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "user",
)
"""Fields of the request that are stored with a completion."""
SHOWN_PARAMETERS: Final = (
    "request_id",
    "tool_choice",
    "seed",
    "top_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "system_fingerprint",
    "service_tier",
    "tools",
    "response_format",
)
"""Fields of the request that OpenAI's object repeats; null if the request did not have them."""


def build_parameter_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a stored completion for parameters that were stored with it."""
    return {**{name: parameters.get(name) for name in SHOWN_PARAMETERS}, "input_user": parameters.get("user")}


def build_choice_fields(completion: Mapping[str, Any], *, first_only: bool) -> dict[str, Any]:
    """Returns the field with the choices of a completion. Their messages have `content` and `refusal` always.

    Args:
        first_only: leave the alternatives out.
    """
    choices = completion["choices"][:1] if first_only else completion["choices"]
    return {
        "choices": [
            {**choice, "message": {"content": None, "refusal": None, **choice["message"]}} for choice in choices
        ]
    }


def build_listed_message(message: Item, message_id: str) -> dict[str, Any]:
    """Builds a message as OpenAI lists it: `content` is text, and content in parts is also in `content_parts`."""
    body = decode_body(message)
    content = body.get("content")
    parts = content if isinstance(content, list) else None
    return {
        **body,
        "id": message_id,
        "content": content if parts is None else extract_text(parts) or None,
        "content_parts": parts,
        "name": body.get("name"),
    }
