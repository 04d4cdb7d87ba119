"""Reads fields of decoded chat messages: text, tool calls, reasoning. Any JSON object is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REASONING_FIELDS: Final = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")
REASONING_PART_TYPES: Final = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")


def extract_text(content: object) -> str:
    """Returns the text of a message's content: the string itself, or its text and refusal parts, joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text") or part.get("refusal")
            if isinstance(text, str):
                parts.append(text)
    return "".join(parts)


def extract_tool_calls(body: Mapping[str, Any]) -> list[Any]:
    """Returns the tool calls in order. A deprecated `function_call` counts as one call."""
    if "tool_calls" not in body and "function_call" not in body:
        return []
    calls = body.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    legacy = body.get("function_call")
    return [{"function": legacy}] if isinstance(legacy, dict) else []


def is_reasoning_part(part: object) -> bool:
    """Says whether a content part is a model's reasoning."""
    return isinstance(part, Mapping) and part.get("type") in REASONING_PART_TYPES
