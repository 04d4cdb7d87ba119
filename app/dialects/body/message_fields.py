"""Reads decoded chat messages and schemas: text, tool calls, reasoning, and what of them takes tokens of a prompt. Any
JSON object is accepted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.conversation.item import Audio, ContentPart, CountedContent, CountedSchemas, File, Image, OtherPart
from app.conversation.json_text import encode_compact_json, list_objects

REASONING_FIELDS: Final = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")
REASONING_PART_TYPES: Final = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
SCHEMA_FIELDS: Final = frozenset({"tools", "functions", "response_format"})
"""Fields of a request with schemas."""
ATTACHMENT_FIELDS: Final = frozenset({"image_url", "input_audio", "file"})
"""Fields of content parts that are not text."""


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


def build_counted_content(body: dict[str, Any]) -> CountedContent:
    """Builds what a message adds to a prompt. Any decoded JSON is accepted: a value of an unexpected type counts as its
    JSON text."""
    role, content = body.get("role", ""), body.get("content")
    role = role if isinstance(role, str) else encode_compact_json(role)
    refusal, name = body.get("refusal"), body.get("name")
    listed = content if isinstance(content, list) else [content] if content else []
    parts = [*map(_read_part, listed)]
    if isinstance(refusal, str):
        parts.append(refusal)
    return CountedContent(
        role,
        parts,
        name if isinstance(name, str) else "",
        [*map(_read_counted_call, extract_tool_calls(body))],
        isinstance(body.get("audio"), dict),
    )


def list_attachments(body: dict[str, Any]) -> list[ContentPart]:
    """Returns the images, audio and files of a message."""
    content = body.get("content")
    if not isinstance(content, list):
        return []
    parts = list_objects(content)
    return [_read_part(part) for part in parts if not ATTACHMENT_FIELDS.isdisjoint(part) and "text" not in part]


def read_schemas(fields: Mapping[str, Any]) -> CountedSchemas:
    """Reads the schemas in decoded fields of a request (`SCHEMA_FIELDS`)."""
    tools, functions = fields.get("tools"), fields.get("functions")
    called: list[Any] = list(functions) if isinstance(functions, list) else []
    customs, others = [], []
    for tool in tools if isinstance(tools, list) else ():
        match tool:
            case {"custom": custom}:
                customs.append(custom)
            case {"function": function}:
                called.append(function)
            case _:
                others.append(tool)
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": {} as schema}:
            return CountedSchemas(called, customs, others, schema)
    return CountedSchemas(called, customs, others)


def _read_part(part: object) -> ContentPart:
    match part:
        case str(text) | {"text": str(text)} | {"refusal": str(text)}:
            return text
        case {"image_url": {"url": str(url)} as image}:
            return Image(url, image.get("detail"))
        case {"image_url": str(url)}:
            return Image(url)
        case {"input_audio": {} as audio}:
            return Audio(_read_text(audio, "data"))
        case {"file": {} as file}:
            return File(_read_text(file, "file_data"))
    return OtherPart(part)


def _read_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _read_counted_call(call: object) -> tuple[str, str]:
    match call:
        case {"function": {} as called} | {"custom": {} as called}:
            arguments = called.get("arguments", called.get("input"))
            return _render_as_text(called.get("name", "")), _render_as_text(arguments)
    return "", encode_compact_json(call)


def _render_as_text(value: object) -> str:
    return value if isinstance(value, str) else encode_compact_json(value)
