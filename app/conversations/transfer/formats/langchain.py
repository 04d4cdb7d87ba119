"""LangChain's dumps of messages → chat messages. Pure.

Two forms, both of `langchain_core`: `messages_to_dict` (`{"type": "human", "data": {…}}`) and `dumpd` / `dumps`
(`{"lc": 1, "type": "constructor", "id": […, "HumanMessage"], "kwargs": {…}}`), in which message histories are saved
too. A dump is a list of messages, a list of such lists, or an object of them by session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from app.conversation.messages import Message
from app.conversations.transfer.formats.imported_history import (
    Imported,
    ImportedMessage,
    an_array,
    an_object,
    inside,
    noticed,
    refused,
    written,
)

EXPECTED: Final = (
    "a LangChain message: an object with 'type' and 'data' (messages_to_dict), or with 'lc', 'id' and 'kwargs' (dumpd)"
)
ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
ROLES_OF_CHAT: Final = {"human": "user", "ai": "assistant"}
"""Names that a `ChatMessage` may give a role, beside OpenAI's."""
KEPT_PARTS: Final = ("text", "image_url", "input_audio", "refusal")
DUPLICATES: Final = ("tool_use", "tool_call", "tool_call_chunk", "function_call", "invalid_tool_call")
"""Parts of an AI message that its `tool_calls` repeat."""


def is_message(value: object) -> bool:
    """Whether a decoded value has the shape of a dumped message."""
    if not isinstance(value, dict):
        return False
    return "lc" in value or ("data" in value and isinstance(value.get("type"), str))


def read(value: object) -> list[Imported]:
    """The conversations of a dump.

    Raises:
        InvalidRequest: it is no dump of messages.
    """
    if isinstance(value, dict) and not is_message(value) and not isinstance(value.get("messages"), list):
        return [
            conversation
            for session, history in value.items()
            for conversation in [_history(history, f"[{session!r}]", session)]
            if conversation.messages
        ]
    if isinstance(value, list) and value and isinstance(value[0], list | dict) and not is_message(value[0]):
        return [_history(history, f"[{index}]", None) for index, history in enumerate(value)]
    return [_history(value, "", None)]


def _history(value: object, where: str, session: str | None) -> Imported:
    if isinstance(value, dict):
        value, where = _inside(value, where)
    if not isinstance(value, list):
        raise refused(where, "an array of LangChain messages")
    left_out: Counter[str] = Counter()
    found = [_message(one, f"{where}[{index}]", left_out) for index, one in enumerate(value)]
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
    return Imported(
        messages=tuple(message for message in found if message is not None),
        where=where,
        title=session,
        warnings=(noticed(where, f"left out: {told}."),) if told else (),
    )


def _inside(value: Mapping[str, Any], where: str) -> tuple[object, str]:
    """The messages of an object that holds them: a history, a prompt, one message."""
    for holder, place in ((value, where), (value.get("kwargs"), inside(where, "kwargs"))):
        if isinstance(holder, dict) and isinstance(holder.get("messages"), list):
            return holder["messages"], inside(place, "messages")
    return [value], where


def _message(value: object, where: str, left_out: Counter[str]) -> ImportedMessage | None:
    told = an_object(value, where, EXPECTED)
    kind, facts = _kind_and_facts(told, where)
    if kind == "remove":
        left_out["markers of removed messages"] += 1
        return None
    role = _role(kind, facts, where)
    body: dict[str, Any] = {"role": role, "content": _content(facts.get("content"), f"{where}.content", left_out)}
    if isinstance(facts.get("name"), str) and facts["name"]:
        body["name"] = facts["name"]
    if role == "assistant":
        body |= _calls(facts, where)
        if "tool_calls" in body or "function_call" in body:
            body["content"] = body["content"] or None
    elif role == "tool":
        body["tool_call_id"] = facts.get("tool_call_id")
    return ImportedMessage(Message(written(body, where).encode(), body), where)


def _kind_and_facts(told: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """What kind of message it is, such as `human`, and its fields."""
    if "lc" in told:
        path, facts = told.get("id"), told.get("kwargs")
        if told.get("type") != "constructor" or not isinstance(path, list) or not path or not isinstance(facts, dict):
            raise refused(where, EXPECTED)
        name = str(path[-1])
    else:
        facts, name = told.get("data"), str(told.get("type"))
        if not isinstance(facts, dict):
            raise refused(where, EXPECTED)
    return name.removesuffix("Chunk").removesuffix("Message").lower(), facts


def _role(kind: str, facts: Mapping[str, Any], where: str) -> str:
    if kind == "chat":
        named = str(facts.get("role", ""))
        return ROLES_OF_CHAT.get(named, named)
    if kind not in ROLES:
        raise refused(where, f"a message of kind {', '.join(ROLES)} or chat, not {kind!r}")
    return ROLES[kind]


def _content(content: object, where: str, left_out: Counter[str]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(where, "a string or an array of content blocks")
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        if isinstance(block, str):
            parts.append({"type": "text", "text": block})
            continue
        part = _part(an_object(block, f"{where}[{index}]", "a content block: a string or an object"))
        if part is not None:
            parts.append(part)
        elif block.get("type") not in DUPLICATES:
            left_out[f"content blocks of type {str(block.get('type'))[:40]!r}"] += 1
    return parts or ""


def _part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """A content block as a content part of OpenAI's; None for one that has no such form."""
    data, media_type = block.get("base64", block.get("data")), block.get("mime_type")
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind in KEPT_PARTS:
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


def _calls(facts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tool calls of an AI message as OpenAI has them: as the provider wrote them where the dump still says."""
    extra = facts.get("additional_kwargs")
    extra = extra if isinstance(extra, dict) else {}
    calls = [
        _call(one, f"{where}.{name}[{index}]")
        for name in ("tool_calls", "invalid_tool_calls")
        for index, one in enumerate(an_array(facts.get(name), f"{where}.{name}", "an array of tool calls"))
    ]
    as_written = extra.get("tool_calls")
    found: dict[str, Any] = {}
    if _are_calls(as_written) and (not calls or [one.get("id") for one in as_written] == [one["id"] for one in calls]):
        found["tool_calls"] = as_written
    elif calls:
        found["tool_calls"] = calls
    elif isinstance(extra.get("function_call"), dict):
        found["function_call"] = extra["function_call"]
    if isinstance(extra.get("refusal"), str):
        found["refusal"] = extra["refusal"]
    return found


def _are_calls(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _call(value: object, where: str) -> dict[str, Any]:
    """A call: `{"name", "args", "id"}`, `args` an object, or of an invalid call the text that the model wrote."""
    told = an_object(value, where, "a tool call: an object with 'name', 'args' and 'id'")
    arguments = told.get("args")
    text = arguments if isinstance(arguments, str) else written(arguments or {}, f"{where}.args")
    return {"id": told.get("id"), "type": "function", "function": {"name": told.get("name"), "arguments": text}}
