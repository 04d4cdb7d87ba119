"""Converts the content of chat messages to the content of items of the conversations API, part by part. Pure.

The result has only part types of OpenAI's schema. A part of another type becomes a text part that names the type and
has the whole part in its field `part`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.item import Item
from app.dialects.body.message import decode_body
from app.dialects.body.message_fields import REASONING_FIELDS, REASONING_PART_TYPES

MessageBody = Mapping[str, Any]
Part = dict[str, Any]

IMAGE_DETAILS: Final = ("auto", "low", "high", "original")
FILE_FIELDS: Final = ("file_data", "file_id", "filename")
AUDIO_TYPES: Final = {"mp3": "audio/mpeg", "wav": "audio/wav"}
CACHE_BREAKPOINT_FIELD: Final = "prompt_cache_breakpoint"
"""A field of content parts that both of OpenAI's protocols have."""


def build_message_parts(message: Item) -> list[Part]:
    """Returns a message's content as parts of a `message` item; an empty list if it has none."""
    body = decode_body(message)
    is_answer = body.get("role") == "assistant"
    parts = [_convert_to_item_part(one, is_answer=is_answer) for one in _list_content_parts(body.get("content"))]
    refusal = body.get("refusal")
    if isinstance(refusal, str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    audio = body.get("audio")
    if is_answer and isinstance(audio, Mapping) and not parts:
        transcript = audio.get("transcript")
        parts.append(build_item_text_part(transcript if isinstance(transcript, str) else "", is_answer=True))
    _add_citations(parts, body.get("annotations"))
    return parts


def build_tool_output(message: Item) -> str | list[Part]:
    """Returns a tool's result as the `output` of an item: a text unchanged, parts converted."""
    content = decode_body(message).get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else _to_json(content)
    parts = [_convert_to_item_part(one, is_answer=False) for one in content]
    return [one if one["type"].startswith("input_") else _to_input_text(one) for one in parts]


def _to_input_text(part: Part) -> Part:
    """Converts a part to input text: OpenAI's schema allows no other text in a tool's result."""
    return {**part, "type": "input_text", "text": part.get("text") or part.get("refusal", "")}


def build_speaker_fields(message: Item) -> Part:
    """Returns the fields of a message that a `message` item has, too: `name` and `audio`."""
    body = decode_body(message)
    return {name: body[name] for name in ("name", "audio") if body.get(name)}


def build_reasoning_fields(message: Item) -> Part | None:
    """Returns the fields of a `reasoning` item; None if the message has no reasoning."""
    body = decode_body(message)
    reasoning_fields = {name: body[name] for name in REASONING_FIELDS if body.get(name)}
    if not reasoning_fields:
        return None
    for name in ("reasoning_content", "reasoning"):
        if isinstance(reasoning_fields.get(name), str):
            return {"summary": [], "content": [_reasoning_text_part(reasoning_fields[name])]}
    blocks = next((value for value in reasoning_fields.values() if isinstance(value, list)), None)
    if blocks is None:
        return {"summary": [], "content": [_reasoning_text_part(_to_json(next(iter(reasoning_fields.values()))))]}
    return _build_reasoning_from_blocks(blocks)


def _build_reasoning_from_blocks(blocks: Sequence[object]) -> Part:
    """Converts blocks of reasoning: OpenRouter's `reasoning_details` or litellm's `thinking_blocks`."""
    reasoning_fields: Part = {"summary": [], "content": []}
    for block in blocks:
        fields = block if isinstance(block, Mapping) else {"text": _to_json(block)}
        text = next((fields[name] for name in ("text", "thinking") if isinstance(fields.get(name), str)), None)
        if text is not None:
            reasoning_fields["content"].append(_reasoning_text_part(text))
        elif isinstance(fields.get("summary"), str):
            reasoning_fields["summary"].append({"type": "summary_text", "text": fields["summary"]})
        elif isinstance(fields.get("data"), str):
            reasoning_fields["encrypted_content"] = fields["data"]
    return reasoning_fields


def _reasoning_text_part(text: str) -> Part:
    return {"type": "reasoning_text", "text": text}


def _list_content_parts(content: object) -> Sequence[object]:
    if isinstance(content, list):
        return content
    return () if content is None or content == "" else (content,)


def _convert_to_item_part(part: object, *, is_answer: bool) -> Part:
    if isinstance(part, str):
        return build_item_text_part(part, is_answer=is_answer)
    if not isinstance(part, Mapping):
        return build_item_text_part(_to_json(part), is_answer=is_answer)
    converted_part = convert_known_chat_part(part, is_answer=is_answer)
    if converted_part is None:
        return {"type": "text", "text": f"[{part.get('type')}]", "part": dict(part)}
    if isinstance(part.get(CACHE_BREAKPOINT_FIELD), Mapping):
        converted_part[CACHE_BREAKPOINT_FIELD] = part[CACHE_BREAKPOINT_FIELD]
    return converted_part


def convert_known_chat_part(part: MessageBody, *, is_answer: bool) -> Part | None:
    """Returns a content part as items have it; None for a part of a type that items do not have."""
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return build_item_text_part(text, is_answer=is_answer)
        case {"type": "refusal", "refusal": str(refusal)}:
            return {"type": "refusal", "refusal": refusal}
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "input_image", "detail": _read_image_detail(part["image_url"]), "image_url": url}
        case {"type": "input_audio", "input_audio": {"data": str(data)} as audio}:
            kind = str(audio.get("format"))
            url = f"data:{AUDIO_TYPES.get(kind, 'application/octet-stream')};base64,{data}"
            return {"type": "input_file", "filename": f"audio.{kind}", "file_data": url}
        case {"type": "file", "file": dict(file)}:
            file_fields = {name: file[name] for name in FILE_FIELDS if isinstance(file.get(name), str)}
            return {"type": "input_file", **file_fields}
    if part.get("type") in REASONING_PART_TYPES:
        return _reasoning_text_part(read_reasoning_text(part))
    return None


def build_item_text_part(text: str, *, is_answer: bool) -> Part:
    """Returns a text as a part of a `message` item."""
    return (
        {"type": "output_text", "text": text, "annotations": []} if is_answer else {"type": "input_text", "text": text}
    )


def _read_image_detail(image: object) -> str:
    detail = image.get("detail") if isinstance(image, Mapping) else None
    return detail if detail in IMAGE_DETAILS else "auto"


def read_reasoning_text(part: MessageBody) -> str:
    """Returns the text of a reasoning part; Mistral's parts contain text parts."""
    content = part.get("thinking") or part.get("text") or part.get("reasoning") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(one.get("text", "")) for one in content if isinstance(one, Mapping))
    return _to_json(content)


def _add_citations(parts: Sequence[Part], annotations: object) -> None:
    """Adds a chat message's citations to its first text part, where items have them."""
    said = next((part for part in parts if part["type"] == "output_text"), None)
    if said is None or not isinstance(annotations, list):
        return
    said["annotations"] += [cited for cited in map(convert_citation, annotations) if cited is not None]


def convert_citation(annotation: object) -> Part | None:
    """Returns a citation of a chat message as items have it; None for an annotation that items do not have."""
    match annotation:
        case {
            "type": "url_citation",
            "url_citation": {"url": str(url), "title": str(title), "start_index": int(start), "end_index": int(end)},
        }:
            return {"type": "url_citation", "url": url, "title": title, "start_index": start, "end_index": end}
    return None


def _to_json(value: object) -> str:
    return orjson.dumps(value).decode()
