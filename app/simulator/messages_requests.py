"""Reads requests of the Messages API for the simulated model, which answers requests of Chat Completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.dialects.message_rendering import render_messages_for_chat
from app.dialects.messages.request import parse_messages_fields
from app.dialects.messages.request_fields import translate_messages_fields_to_chat
from app.dialects.request_body import decode_body_fields
from app.simulator.messages_checks import sign_thinking

THOUGHT: Final = "The context has what is needed."


def translate_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request in the form of Chat Completions.

    Raises:
        InvalidRequest: the request is not valid.
    """
    fields = decode_body_fields(orjson.dumps(request))
    parsed = parse_messages_fields(fields, may_begin_with_result=False)
    messages, _ = render_messages_for_chat(parsed.raw_messages)
    translated = translate_messages_fields_to_chat(fields).fields
    return {
        **{name: orjson.loads(bytes(raw)) for name, raw in translated.items()},
        "messages": [orjson.loads(raw) for raw in messages],
    }


def think(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the signed thinking of an answer, if the request asks for it."""
    if (request.get("thinking") or {}).get("type") not in ("enabled", "adaptive"):
        return []
    block = {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    messages = [one for one in request["messages"] if one["role"] != "system"]
    return [{**block, "signature": sign_thinking(messages, block)}]
