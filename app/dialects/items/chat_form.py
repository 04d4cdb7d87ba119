"""The chat form of a run of Responses items. Pure.

The core reads roles, texts, calls and identity from it. The items themselves are what is stored and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.conversation.json_text import encode_compact_json, list_objects
from app.dialects.items.item_kinds import (
    CHANGING_FIELDS,
    find_message_role,
    is_client_call,
    join_tool_name,
    read_call_id,
    read_type,
)
from app.dialects.items.item_parts import CACHE_BREAKPOINT_FIELD, FILE_FIELDS

MessageBody = dict[str, Any]
Part = dict[str, Any]

PARAGRAPH_BREAK: Final = "\n\n"
"""Stands between the texts of two items or blocks of one answer, and between two pieces of reasoning."""
TEXT_PART_TYPES: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
NOT_AN_OBJECT: Final = "unknown"
"""The type of the part that holds a value that is no item or no part."""


def build_chat_form(items: Sequence[Any]) -> MessageBody:
    """Returns the body of the chat message that says what the items say. Any decoded JSON is accepted.

    What a chat message cannot express (an item of a hosted tool, a compaction, a part of an unknown type) stands in it
    as a content part of its own type, so that it is counted and is part of the identity.
    """
    first: Any = items[0] if items else None
    if isinstance(first, str):
        return {"role": "system", "content": first}
    role = find_message_role(first) if isinstance(first, dict) else "assistant"
    if role == "assistant":
        return _build_answer(items)
    if role == "tool":
        return {"role": "tool", "tool_call_id": read_call_id(first) or "", "content": convert_output(first)}
    content = first.get("content") if read_type(first) == "message" else [strip_changing_fields(first)]
    return {"role": role, "content": _convert_content(content)}


def convert_output(item: Mapping[str, Any]) -> str | list[Part]:
    """Returns the output of a call as the content of a tool message."""
    output = item.get("output")
    if isinstance(output, str):
        return output
    if isinstance(output, list) and all(map(_is_part, output)):
        return simplify_content([convert_part(part) for part in output])
    if isinstance(output, dict) and isinstance(output.get("image_url"), str):
        return [_build_image_part(output)]
    if output is not None:
        return encode_compact_json(output)
    named = {"type", "call_id", "approval_request_id", *(CHANGING_FIELDS - {"status"})}
    return encode_compact_json({name: value for name, value in item.items() if name not in named})


def build_tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call that the client answers as a tool call. A call that is neither of a function nor of a custom tool
    becomes one of a function with the name of its type."""
    call_id, name = read_call_id(item), join_tool_name(item.get("namespace"), item.get("name"))
    match item:
        case {"type": "function_call"}:
            function = {"name": name, "arguments": item.get("arguments", "")}
        case {"type": "custom_tool_call"}:
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": item.get("input", "")}}
        case _:
            more = {
                name: value
                for name, value in item.items()
                if name not in CHANGING_FIELDS and name not in ("type", "call_id", "caller")
            }
            function = {"name": item["type"], "arguments": encode_compact_json(more)}
    return {"id": call_id, "type": "function", "function": function}


def convert_part(part: object) -> Part:
    """Returns a content part as Chat Completions has it; a part that it does not have stays as it is."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return {"type": NOT_AN_OBJECT, "value": part}
    converted_part = _convert_known_part(part)
    if part.get(CACHE_BREAKPOINT_FIELD) is not None:
        converted_part[CACHE_BREAKPOINT_FIELD] = part[CACHE_BREAKPOINT_FIELD]
    return converted_part


def strip_changing_fields(item: Mapping[str, Any]) -> Part:
    """Returns an item as a part, without the fields that may change although it means the same item."""
    part = {name: value for name, value in item.items() if name not in CHANGING_FIELDS}
    # The text of a compaction says what its encrypted form says.
    if part.get("type") == "compaction" and isinstance(part.get("text"), str):
        part.pop("encrypted_content", None)
    return part if isinstance(part.get("type"), str) else {"type": NOT_AN_OBJECT, "value": part}


def _build_answer(items: Sequence[object]) -> MessageBody:
    parts: list[Part] = []
    reasoning: list[Mapping[str, Any]] = []
    calls: list[dict[str, Any]] = []
    message_items = 0
    for item in items:
        if not isinstance(item, dict):
            parts.append({"type": NOT_AN_OBJECT, "value": item})
        elif read_type(item) == "message":
            if parts and parts[-1].get("type") == "text":
                parts.append({"type": "text", "text": PARAGRAPH_BREAK})
            parts += _list_parts(item.get("content"))
            message_items += 1
        elif item.get("type") == "reasoning":
            reasoning.append(item)
        elif is_client_call(item):
            calls.append(build_tool_call(item))
        elif item.get("type") == "image_generation_call" and isinstance(item.get("result"), str):
            # As an image, it has the tokens of an image and not those of its base64 text.
            parts.append(_build_image_part({"image_url": f"data:image/png;base64,{item['result']}"}))
        else:
            parts.append(strip_changing_fields(item))
    if message_items > 1 and all(map(_is_plain_text, parts)):
        parts = [{"type": "text", "text": "".join([part["text"] for part in parts])}]
    body: MessageBody = {
        "role": "assistant",
        "content": simplify_content(parts) if parts or message_items else None,
        **_build_reasoning(reasoning),
    }
    return {**body, "tool_calls": calls} if calls else body


def _build_reasoning(items: Sequence[Mapping[str, Any]]) -> MessageBody:
    """Returns the fields of a message for reasoning: its text in the field that most models use, or, if there is no
    text, encrypted reasoning in OpenRouter's form."""
    texts = [text for item in items for text in read_reasoning_texts(item)]
    if texts:
        return {"reasoning_content": PARAGRAPH_BREAK.join(texts)}
    sealed = [item.get("encrypted_content") for item in items]
    details = [{"type": "reasoning.encrypted", "data": one if isinstance(one, str) else ""} for one in sealed]
    return {"reasoning_details": details} if details else {}


def read_reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """Returns the texts of a reasoning item: the reasoning itself, or its summary."""
    blocks = item.get("content") or item.get("summary")
    return [block["text"] for block in list_objects(blocks) if isinstance(block.get("text"), str)]


def _convert_content(content: object) -> str | list[Part] | None:
    return content if content is None or isinstance(content, str) else simplify_content(_list_parts(content))


def _list_parts(content: object) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list):
        return [convert_part(part) for part in content]
    return [] if content is None else [convert_part(content)]


def simplify_content(parts: list[Part]) -> str | list[Part]:
    """Returns a single text as a string, no parts as an empty one."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and _is_plain_text(parts[0]) else parts


def _is_plain_text(part: Part) -> bool:
    return part.keys() == {"type", "text"} and part["type"] == "text"


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _convert_known_part(part: Part) -> Part:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in TEXT_PART_TYPES:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(refusal)}:
            return {"type": "refusal", "refusal": refusal}
        case {"type": "input_image", "image_url": str()}:
            return _build_image_part(part)
        case {"type": "input_file"} if not part.get("file_url"):
            return {
                "type": "file",
                "file": {name: part[name] for name in FILE_FIELDS if isinstance(part.get(name), str)},
            }
        case {"type": "input_audio", "input_audio": {"data": str()} as audio}:
            return {
                "type": "input_audio",
                "input_audio": {name: audio[name] for name in ("data", "format") if name in audio},
            }
    return dict(part)


def _build_image_part(part: Mapping[str, Any]) -> Part:
    image = {"url": part["image_url"]}
    if isinstance(part.get("detail"), str):
        # Chat Completions has no detail "original".
        image["detail"] = "high" if part["detail"] == "original" else part["detail"]
    return {"type": "image_url", "image_url": image}
