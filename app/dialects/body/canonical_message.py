"""The canonical form of a chat message: the part that stays the same when clients send the message back in their own
shape.

The form contains the role, the text, other parts by the hash of their content, tool calls by name and parsed arguments,
and tool results (parsed if they are JSON). It leaves out everything else (nulls, ids, annotations, reasoning, vendor
fields, key order), because clients drop or reshape it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.conversation.canonical_form import (
    CanonicalItem,
    build_answer_text_item,
    build_json_or_text_item,
    build_text_item,
    encode_json,
    encode_name,
    encode_utf8,
    encode_with_lengths,
    hash_sha256,
    normalize_text,
)
from app.dialects.body.message_fields import REASONING_PART_TYPES, extract_tool_calls

ROLES_LEFT_OUT = ("system", "developer")
UNSTABLE_PART_FIELDS = ("cache_control", "prompt_cache_breakpoint", "detail")
"""Fields of a content part that a client may change although it means the same part."""


def canonicalize_message(body: dict[str, Any]) -> bytes | None:
    """Returns the canonical bytes of a message, or None if the chain skips the message.

    The chain skips system and developer messages wherever they are, and assistant messages with neither content nor
    tool calls. Any JSON object is accepted: values of an unexpected type are compared by their JSON.
    """
    role, content = body.get("role"), body.get("content")
    if role == "user":
        return encode_with_lengths(b"user", _build_content_items(content, build_text_item))
    if role in ROLES_LEFT_OUT:
        return None
    if role == "assistant":
        calls = extract_tool_calls(body)
        # The text beside tool calls is left out: some clients drop it, others send it back.
        if calls:
            return encode_with_lengths(b"assistant", [_build_call_item(call) for call in calls])
        items = _build_answer_items(body)
        return encode_with_lengths(b"assistant", items) if items else None
    if role in ("tool", "function"):
        return encode_with_lengths(b"tool", _build_content_items(content, build_json_or_text_item))
    return encode_with_lengths(encode_name(role), _build_content_items(content, build_text_item))


def canonicalize_answer_text(body: dict[str, Any]) -> str:
    """Returns the text of an assistant's final answer in canonical form. Empty for an answer with tool calls."""
    if extract_tool_calls(body):
        return ""
    return b"".join([text for kind, text in _build_answer_items(body) if kind == b"t"]).decode("utf-8", "surrogatepass")


def _build_answer_items(body: dict[str, Any]) -> list[CanonicalItem]:
    content = body.get("content")
    return _build_content_items(
        _append_refusal(content, body["refusal"]) if "refusal" in body else content, build_answer_text_item
    )


def _append_refusal(content: object, refusal: object) -> object:
    """Returns an assistant's content with its refusal at the end. A refusal counts as text."""
    if not isinstance(refusal, str) or not refusal:
        return content
    if not content:
        return refusal
    return [*content, refusal] if isinstance(content, list) else [content, refusal]


def _build_content_items(
    content: object, build_text_item: Callable[[str], CanonicalItem | None]
) -> list[CanonicalItem]:
    """Returns the items of a content in order. Each run of text parts is joined and passed to `build_text_item`; other
    parts are encoded by kind and hash."""
    if isinstance(content, str):
        item = build_text_item(content)
        return [item] if item else []
    if content is None:
        return []
    if not isinstance(content, list):
        return [(b"p", encode_json(content))]
    items: list[CanonicalItem | None] = []
    run: list[str] = []
    for part in content:
        text = _extract_part_text(part)
        if text is not None:
            run.append(text)
        else:
            items += (build_text_item("".join(run)), _build_part_item(part))
            run = []
    items.append(build_text_item("".join(run)))
    return [item for item in items if item]


def _extract_part_text(part: object) -> str | None:
    """Returns the text of a text or refusal part, "" for a reasoning part, and None for a part of another kind."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(refusal)}:
            return refusal
    return "" if part.get("type") in REASONING_PART_TYPES else None


def _build_part_item(part: object) -> CanonicalItem:
    """Encodes an image, audio or file part by its content or its address, and an unknown part by its whole JSON."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(source)} | str(source)}:
            return b"i", hash_sha256(encode_utf8(source))
        case {"type": "input_audio", "input_audio": {"data": str(source)}}:
            return b"a", hash_sha256(encode_utf8(source))
        case {"type": "file", "file": {"file_id": str(source)} | {"file_data": str(source)}}:
            return b"f", hash_sha256(encode_utf8(source))
    if isinstance(part, dict):
        part = {key: value for key, value in part.items() if key not in UNSTABLE_PART_FIELDS}
    return b"p", hash_sha256(encode_json(part))


def _build_call_item(call: object) -> CanonicalItem:
    match call:
        case {"custom": {"name": name, "input": str(text)}}:
            return b"u", encode_with_lengths(encode_name(name), [(b"t", encode_utf8(normalize_text(text)))])
        case {"function": {"name": name} as function}:
            return b"c", encode_with_lengths(encode_name(name), [_build_arguments_item(function.get("arguments"))])
    return b"p", encode_json(call)


def _build_arguments_item(arguments: object) -> CanonicalItem:
    """Encodes parsed arguments. Missing arguments and an empty object are the same, because clients turn one into the
    other."""
    if isinstance(arguments, str):
        return build_json_or_text_item(arguments) or (b"j", b"{}")
    return b"j", encode_json({} if arguments is None else arguments)
