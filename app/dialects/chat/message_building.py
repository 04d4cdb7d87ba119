"""Builds chat messages and their parts from what another vocabulary says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.conversation.item import ToolCall

MessageBody = dict[str, Any]
Part = dict[str, Any]


def build_message(role: str, content: str | Sequence[Part]) -> MessageBody:
    """Returns a message of a role with a content. A single text part becomes a string, no parts an empty one."""
    return {"role": role, "content": _simplify_content(content)}


def build_answer(
    content: str | Sequence[Part] | None, reasoning: Mapping[str, Any], calls: Sequence[ToolCall]
) -> MessageBody:
    """Returns an assistant message with further fields of `build_reasoning`."""
    body: MessageBody = {"role": "assistant", "content": None if content is None else _simplify_content(content)}
    body |= reasoning
    if calls:
        body["tool_calls"] = [_build_call(call) for call in calls]
    return body


def build_tool_result(call_id: str, content: str | Sequence[Part]) -> MessageBody:
    """Returns the message with the result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": _simplify_content(content)}


def build_reasoning(texts: Sequence[str], sealed: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of a message for reasoning: its text in the field that most models use, or, if there is no
    text, encrypted reasoning in OpenRouter's form."""
    if texts:
        return {"reasoning_content": "\n\n".join(texts)}
    return {"reasoning_details": [{"type": "reasoning.encrypted", "data": data} for data in sealed]}


def build_text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def build_refusal_part(text: str) -> Part:
    return {"type": "refusal", "refusal": text}


def build_image_part(url: str, detail: str | None) -> Part:
    return {"type": "image_url", "image_url": {"url": url} if detail is None else {"url": url, "detail": detail}}


def build_file_part(*, data: str | None, file_id: str | None, name: str | None) -> Part:
    fields = {"file_data": data, "file_id": file_id, "filename": name}
    return {"type": "file", "file": {field: value for field, value in fields.items() if value is not None}}


def build_audio_part(data: str, audio_format: str) -> Part:
    return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}


def _simplify_content(content: str | Sequence[Part]) -> str | list[Part]:
    if isinstance(content, str):
        return content
    if not content:
        return ""
    return str(content[0]["text"]) if len(content) == 1 and content[0].keys() == {"type", "text"} else list(content)


def _build_call(call: ToolCall) -> dict[str, Any]:
    argument_field = "input" if call.kind == "custom" else "arguments"
    return {"id": call.id, "type": call.kind, call.kind: {"name": call.name, argument_field: call.arguments}}
