"""Reads the completion that a summarizer answers with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.dialects.chat.message_fields import extract_text


def read_finish_reason(completion: Mapping[str, Any]) -> str:
    """Returns why the model ended its answer; empty if the provider does not say."""
    return str(_read_first_choice(completion).get("finish_reason") or "")


def read_completion_text(completion: Mapping[str, Any]) -> str:
    """Returns the text of the first answer; empty if it has none."""
    return extract_text(_read_first_message(completion).get("content"))


def calls_tool(completion: Mapping[str, Any]) -> bool:
    """Says whether the first answer calls a tool."""
    message = _read_first_message(completion)
    return bool(message.get("tool_calls") or message.get("function_call"))


def _read_first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = completion.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _read_first_message(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    message = _read_first_choice(completion).get("message")
    return message if isinstance(message, dict) else {}
