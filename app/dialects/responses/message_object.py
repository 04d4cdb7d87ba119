"""A message of either protocol as an object of the gateway's own API. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from app.dialects.responses.message import ResponsesMessage
from app.dialects.responses.message_rendering import render_messages_for_chat


def build_message_object(raw: bytes) -> dict[str, Any]:
    """Builds a chat message. That of a Responses message has the items in `response_items`, since a chat message cannot
    express all of them."""
    if raw[:1] != b"[":
        return dict(orjson.loads(raw))
    message = ResponsesMessage(raw)
    rendered, _ = render_messages_for_chat([raw])
    chat = orjson.loads(rendered[0]) if rendered else {"role": message.role, "content": ""}
    return {**chat, "response_items": message.items}
