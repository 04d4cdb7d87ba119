"""The chat form of blocks of the Messages API. Pure.

The core reads roles, texts, calls and identity from it. The blocks themselves are what is stored and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.conversation.json_text import decode_json_or, encode_compact_json, keep_text
from app.dialects.items.chat_form import PARAGRAPH_BREAK, simplify_content

Block = dict[str, Any]
"""A decoded block. Its `type` is a string."""
MessageBody = dict[str, Any]

THINKING_TYPES: Final = ("thinking", "redacted_thinking")
EXPRESSED_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"source"}),
    "document": frozenset({"source", "title"}),
    "tool_use": frozenset({"id", "name", "input"}),
    "tool_result": frozenset({"tool_use_id", "content"}),
    "thinking": frozenset({"thinking"}),
    "redacted_thinking": frozenset(),
    "compaction": frozenset({"content"}),
}
"""Fields of blocks that the chat form has, by type."""
UNSENT_FIELDS: Final = frozenset({"type", "cache_control"})
"""Fields of blocks that say nothing to a model."""
UNKNOWN_TYPE: Final = "unknown"
"""The type of a block that is no object, or has no type."""


def list_blocks(content: object) -> list[Block]:
    """Returns the blocks of a decoded content. A text is one block; whatever is no block gets the type `unknown`."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    values = content if isinstance(content, list) else [] if content is None else [content]
    return [
        value
        if isinstance(value, dict) and isinstance(value.get("type"), str)
        else {"type": UNKNOWN_TYPE, "value": value}
        for value in values
    ]


def build_body(role: str, blocks: Sequence[Block]) -> MessageBody:
    """Returns the body of the chat message that says what the blocks say. Any decoded JSON is accepted.

    A block that a chat message cannot express stands in it as a content part of its own type, so that it is counted and
    is part of the identity.
    """
    if role == "assistant":
        return _build_answer(blocks)
    if role == "user" and blocks and all(block["type"] == "tool_result" for block in blocks):
        result = blocks[0]
        return {
            "role": "tool",
            "tool_call_id": keep_text(result.get("tool_use_id")),
            "content": simplify_content([convert_block(block) for block in list_blocks(result.get("content"))]),
        }
    return {"role": role, "content": simplify_content([convert_block(block) for block in blocks])}


def convert_block(block: Block) -> Block:
    """Returns a block as a content part of Chat Completions; one that it does not have stays as it is, without its
    cache mark."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "compaction", "content": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return {"type": "text", "text": text}
        case {"type": "document", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            title = {"filename": block["title"]} if isinstance(block.get("title"), str) else {}
            return {"type": "file", "file": {**title, "file_data": f"data:{media_type};base64,{data}"}}
    return {name: value for name, value in block.items() if name != "cache_control"}


def build_tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `tool_use` block as a tool call."""
    function = {"name": keep_text(block.get("name")), "arguments": encode_compact_json(block.get("input", {}))}
    return {"id": keep_text(block.get("id")), "type": "function", "function": function}


def list_unexpressed_fields(blocks: Sequence[Block]) -> list[str]:
    """Returns the names of fields that the chat form does not have, also of blocks in results. Blocks of other types
    are named by their type."""
    names: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind not in EXPRESSED_FIELDS:
            continue
        expressed = EXPRESSED_FIELDS[kind] | UNSENT_FIELDS
        if convert_block(block)["type"] == "text":
            expressed -= {"title"}  # of a document that is sent as its text
        left_out = [name for name, value in block.items() if value and name not in expressed]
        names += [f"the field {name!r} of blocks of type {kind!r}" for name in left_out]
        if kind == "tool_result":
            names += list_unexpressed_fields(list_blocks(block.get("content")))
    return names


def _build_answer(blocks: Sequence[Block]) -> MessageBody:
    parts: list[Block] = []
    is_after_text = True
    for block in blocks:
        if block["type"] in ("tool_use", *THINKING_TYPES):
            is_after_text = False
            continue
        part = convert_block(block)
        if part["type"] == "text" and not is_after_text and parts and parts[-1]["type"] == "text":
            part["text"] = PARAGRAPH_BREAK + part["text"]
        parts.append(part)
        is_after_text = True
    calls = [build_tool_call(block) for block in blocks if block["type"] == "tool_use"]
    body: MessageBody = {"role": "assistant", "content": simplify_content(parts) if parts or not calls else None}
    body |= _build_reasoning([block for block in blocks if block["type"] in THINKING_TYPES])
    return {**body, "tool_calls": calls} if calls else body


def _build_reasoning(blocks: Sequence[Block]) -> MessageBody:
    """Returns the fields of a message for thinking: its text, or, if there is none, what only its model can read."""
    texts = [text for block in blocks if (text := keep_text(block.get("thinking")))]
    if texts:
        return {"reasoning_content": PARAGRAPH_BREAK.join(texts)}
    return {"reasoning_details": [{"type": "reasoning.encrypted"}]} if blocks else {}


def list_seals(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the signatures and the encrypted texts of the thinking among some blocks."""
    thinking = [block for block in blocks if block.get("type") in THINKING_TYPES]
    return [seal for one in thinking if (seal := keep_text(one.get("signature")) or keep_text(one.get("data")))]


def decode_input(text: str) -> Any:
    """Returns the input of a call. One that was cut off is no JSON, and kept as a text."""
    value = decode_json_or(text, text)
    return value if isinstance(value, dict) else {"arguments": value}
