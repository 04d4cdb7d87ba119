"""Parses LangChain's dumps of messages into chat messages. Pure.

`langchain_core` has two forms: `messages_to_dict` (`{"type": "human", "data": {…}}`), and `dumpd` / `dumps`
(`{"lc": 1, "type": "constructor", "id": […, "HumanMessage"], "kwargs": {…}}`), in which message histories are saved,
too. A dump is a list of messages, a list of such lists, or an object of them by session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from app.conversations.transfer.formats.imported_conversation import (
    ImportedConversation,
    ImportedMessage,
    build_warning,
    encode_json,
    expect_array,
    expect_object,
    field_location,
    invalid_file_error,
)
from app.dialects.chat.message import ChatMessage

EXPECTED: Final = (
    "a LangChain message: an object with 'type' and 'data' (messages_to_dict), or with 'lc', 'id' and 'kwargs' (dumpd)"
)
ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
CHAT_MESSAGE_ROLES: Final = {"human": "user", "ai": "assistant"}
"""Role names of a `ChatMessage`, beside OpenAI's."""
SUPPORTED_PART_TYPES: Final = ("text", "image_url", "input_audio", "refusal")
DUPLICATE_PART_TYPES: Final = ("tool_use", "tool_call", "tool_call_chunk", "function_call", "invalid_tool_call")
"""Types of content blocks that repeat the message's `tool_calls`; they are left out without a warning."""


def is_dumped_message(value: object) -> bool:
    """Returns whether a decoded value has the shape of a dumped message."""
    if not isinstance(value, dict):
        return False
    return "lc" in value or ("data" in value and isinstance(value.get("type"), str))


def parse_langchain_dump(value: object) -> list[ImportedConversation]:
    """Parses the conversations of a dump.

    Raises:
        InvalidRequest: the value is no dump of messages.
    """
    if isinstance(value, dict) and not is_dumped_message(value) and not isinstance(value.get("messages"), list):
        return [
            conversation
            for session, history in value.items()
            for conversation in [_parse_langchain_history(history, f"[{session!r}]", session)]
            if conversation.messages
        ]
    if isinstance(value, list) and value and isinstance(value[0], list | dict) and not is_dumped_message(value[0]):
        return [_parse_langchain_history(history, f"[{index}]", None) for index, history in enumerate(value)]
    return [_parse_langchain_history(value, "", None)]


def _parse_langchain_history(value: object, location: str, session: str | None) -> ImportedConversation:
    if isinstance(value, dict):
        value, location = _unwrap_messages(value, location)
    if not isinstance(value, list):
        raise invalid_file_error(location, "an array of LangChain messages")
    left_out: Counter[str] = Counter()
    messages = [_parse_message(one, f"{location}[{index}]", left_out) for index, one in enumerate(value)]
    counts_text = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
    return ImportedConversation(
        messages=tuple(message for message in messages if message is not None),
        location=location,
        title=session,
        warnings=(build_warning(location, f"left out: {counts_text}."),) if counts_text else (),
    )


def _unwrap_messages(value: Mapping[str, Any], location: str) -> tuple[object, str]:
    """Returns the messages of an object and their location. The object is a history or a prompt with messages, or a
    single message."""
    for holder, place in ((value, location), (value.get("kwargs"), field_location(location, "kwargs"))):
        if isinstance(holder, dict) and isinstance(holder.get("messages"), list):
            return holder["messages"], field_location(place, "messages")
    return [value], location


def _parse_message(value: object, location: str, omitted_counts: Counter[str]) -> ImportedMessage | None:
    dumped_message = expect_object(value, location, EXPECTED)
    kind, fields = _read_kind_and_fields(dumped_message, location)
    if kind == "remove":
        omitted_counts["markers of removed messages"] += 1
        return None
    role = _parse_role(kind, fields, location)
    body: dict[str, Any] = {
        "role": role,
        "content": _parse_content(fields.get("content"), f"{location}.content", omitted_counts),
    }
    if isinstance(fields.get("name"), str) and fields["name"]:
        body["name"] = fields["name"]
    if role == "assistant":
        body |= _parse_call_fields(fields, location)
        if "tool_calls" in body or "function_call" in body:
            body["content"] = body["content"] or None
    elif role == "tool":
        body["tool_call_id"] = fields.get("tool_call_id")
    return ImportedMessage(ChatMessage(encode_json(body, location).encode(), body), location)


def _read_kind_and_fields(dumped_message: Mapping[str, Any], location: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the kind of a message, such as `human`, and its fields."""
    if "lc" in dumped_message:
        path, fields = dumped_message.get("id"), dumped_message.get("kwargs")
        if (
            dumped_message.get("type") != "constructor"
            or not isinstance(path, list)
            or not path
            or not isinstance(fields, dict)
        ):
            raise invalid_file_error(location, EXPECTED)
        name = str(path[-1])
    else:
        fields, name = dumped_message.get("data"), str(dumped_message.get("type"))
        if not isinstance(fields, dict):
            raise invalid_file_error(location, EXPECTED)
    return name.removesuffix("Chunk").removesuffix("Message").lower(), fields


def _parse_role(kind: str, fields: Mapping[str, Any], location: str) -> str:
    if kind == "chat":
        role_name = str(fields.get("role", ""))
        return CHAT_MESSAGE_ROLES.get(role_name, role_name)
    if kind not in ROLES:
        raise invalid_file_error(location, f"a message of kind {', '.join(ROLES)} or chat, not {kind!r}")
    return ROLES[kind]


def _parse_content(content: object, location: str, omitted_counts: Counter[str]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_file_error(location, "a string or an array of content blocks")
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        if isinstance(block, str):
            parts.append({"type": "text", "text": block})
            continue
        part = _convert_langchain_block(
            expect_object(block, f"{location}[{index}]", "a content block: a string or an object")
        )
        if part is not None:
            parts.append(part)
        elif block.get("type") not in DUPLICATE_PART_TYPES:
            omitted_counts[f"content blocks of type {str(block.get('type'))[:40]!r}"] += 1
    return parts or ""


def _convert_langchain_block(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """Converts a content block to OpenAI's content part; None if OpenAI has no such part."""
    data, media_type = block.get("base64", block.get("data")), block.get("mime_type")
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind in SUPPORTED_PART_TYPES:
            return dict(block)
        case {"type": "image", "url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image"} if isinstance(data, str):
            return {"type": "image_url", "image_url": {"url": f"data:{media_type or 'image/png'};base64,{data}"}}
        case {"type": "audio"} if isinstance(data, str):
            audio = {"data": data, "format": str(media_type or "audio/wav").rpartition("/")[2]}
            return {"type": "input_audio", "input_audio": audio}
        case {"type": "file", "file": {}}:
            return dict(block)
        case {"type": "file"} if isinstance(data, str):
            file = {"file_data": f"data:{media_type or 'application/octet-stream'};base64,{data}"}
            return {"type": "file", "file": file}
    return None


def _parse_call_fields(fields: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Returns the fields for tool calls of an AI message. The provider's own text of the calls is preferred if the dump
    has it, because its arguments are unchanged."""
    extra = fields.get("additional_kwargs")
    extra = extra if isinstance(extra, dict) else {}
    calls = [
        _parse_call(one, f"{location}.{name}[{index}]")
        for name in ("tool_calls", "invalid_tool_calls")
        for index, one in enumerate(expect_array(fields.get(name), f"{location}.{name}", "an array of tool calls"))
    ]
    as_written = extra.get("tool_calls")
    call_fields: dict[str, Any] = {}
    if _is_call_list(as_written) and (
        not calls or [one.get("id") for one in as_written] == [one["id"] for one in calls]
    ):
        call_fields["tool_calls"] = as_written
    elif calls:
        call_fields["tool_calls"] = calls
    elif isinstance(extra.get("function_call"), dict):
        call_fields["function_call"] = extra["function_call"]
    if isinstance(extra.get("refusal"), str):
        call_fields["refusal"] = extra["refusal"]
    return call_fields


def _is_call_list(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _parse_call(value: object, location: str) -> dict[str, Any]:
    """Converts a call `{"name", "args", "id"}`. `args` is an object; for an invalid call it is the model's text."""
    dumped_call = expect_object(value, location, "a tool call: an object with 'name', 'args' and 'id'")
    arguments = dumped_call.get("args")
    text = arguments if isinstance(arguments, str) else encode_json(arguments or {}, f"{location}.args")
    return {
        "id": dumped_call.get("id"),
        "type": "function",
        "function": {"name": dumped_call.get("name"), "arguments": text},
    }
