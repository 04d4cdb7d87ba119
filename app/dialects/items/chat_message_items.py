"""Builds items from chat messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.conversation.item import Item, ToolCall
from app.dialects.body.message import decode_body
from app.dialects.body.message_fields import REASONING_FIELDS, is_reasoning_part
from app.dialects.items.input_items import ITEM_ROLES
from app.dialects.items.item_edits import replace_output
from app.dialects.items.item_ids import derive_item_id
from app.dialects.items.item_parts import (
    CACHE_BREAKPOINT_FIELD,
    build_message_parts,
    build_reasoning_fields,
    build_speaker_fields,
    convert_known_chat_part,
)
from app.dialects.items.left_out_kinds import LeftOutKinds

ItemObject = dict[str, Any]
Part = dict[str, Any]

ID_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""How OpenAI begins the ids of items that a model writes."""
OTHER_ID_PREFIX: Final = "item"
EXPRESSED_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "tool_call_id", *REASONING_FIELDS}
)
"""Fields of a chat message that items express."""
EXPRESSED_PART_FIELDS: Final = frozenset(
    {"type", "text", "refusal", "image_url", "input_audio", "file", CACHE_BREAKPOINT_FIELD}
)


def build_shown_items(
    message: Item, status: str, choose_call_id: Callable[[ToolCall, int, int], str]
) -> list[ItemObject]:
    """Returns a chat message that is no tool's result as lists show it: its reasoning, its text, each of its calls,
    without ids. A message that says nothing is a `message` item without content.

    Args:
        choose_call_id: returns the id of a call, from its number among the calls and its place among the items.
    """
    items: list[ItemObject] = []
    is_answer = message.role == "assistant"
    if is_answer and (reasoning := build_reasoning_fields(message)) is not None:
        items.append({"type": "reasoning", **reasoning})
    calls = message.calls if is_answer else []
    content = build_message_parts(message)
    if content or not (items or calls):
        role = message.role if message.role in ITEM_ROLES else "unknown"
        items.append({"type": "message", "role": role, "content": content, **build_speaker_fields(message)})
    for number, call in enumerate(calls):
        items.append(_build_call_item(call, choose_call_id(call, number, len(items))))
    return [{**item, "status": status} for item in items]


def build_answer_items(message: Item, response_id: str, status: str) -> list[ItemObject]:
    """Returns a chat answer as the output items of a response: reasoning, text, calls, with derived ids."""
    items = build_shown_items(
        message, status, lambda call, _, place: call.id or derive_item_id(response_id, "call", place)
    )
    for part in [part for item in items if item["type"] == "message" for part in item["content"]]:
        if part["type"] == "output_text":
            part["logprobs"] = []
    says_nothing = len(items) == 1 and items[0].get("content") == [] and items[0]["type"] == "message"
    return [] if says_nothing else name_items(items, response_id)


def name_items(items: Sequence[ItemObject], response_id: str) -> list[ItemObject]:
    """Returns the items, each with an id."""
    return [
        item
        if isinstance(item.get("id"), str)
        else {
            **item,
            "id": derive_item_id(response_id, ID_PREFIXES.get(str(item.get("type")), OTHER_ID_PREFIX), index),
        }
        for index, item in enumerate(items)
    ]


class ChatMessageItems:
    """Builds the items of the chat messages of one view. It remembers the calls, because an output has a type that
    depends on its call.

    Attributes:
        output_types: the type of the output of each call so far, by the id of the call.
        left_out: what items cannot express.
    """

    def __init__(self, left_out: LeftOutKinds) -> None:
        self.output_types: dict[str, str] = {}
        self._left_out = left_out
        self._unnamed_calls = 0
        self._unnamed_call_ids: list[str] = []
        """Ids made up for calls without one, until their results come."""

    def build_items(self, message: Item) -> list[ItemObject]:
        body = decode_body(message)
        expressed = EXPRESSED_FIELDS | {"name"} if message.role == "function" else EXPRESSED_FIELDS
        self._left_out.add_fields(body, expressed, "messages")
        match message.role:
            case "assistant":
                return self._build_answer_items(message, body)
            case "tool" | "function":
                return [self._build_output_item(message, body)]
        content = body.get("content")
        parts = self._convert_content(content, is_answer=False)
        # A message of nothing but what items cannot express would be an empty one.
        if not parts and content:
            return []
        return [{"type": "message", "role": message.role, "content": parts}]

    def _build_answer_items(self, message: Item, body: Mapping[str, Any]) -> list[ItemObject]:
        items: list[ItemObject] = []
        content = body.get("content")
        thoughts = [
            convert_known_chat_part(part, is_answer=True)
            for part in (content if isinstance(content, list) else ())
            if is_reasoning_part(part)
        ]
        reasoning = build_reasoning_fields(message)
        if thoughts or (reasoning is not None and any(reasoning.values())):
            reasoning = reasoning or {"summary": [], "content": []}
            self._note_signatures(body)
            items.append({"type": "reasoning", **reasoning, "content": [*reasoning["content"], *thoughts]})
        said = self._convert_content(content, is_answer=True)
        refusal = body.get("refusal")
        if isinstance(refusal, str) and refusal:
            text = [{"type": "output_text", "text": said, "annotations": []}] if isinstance(said, str) and said else []
            said = [*(said if isinstance(said, list) else text), {"type": "refusal", "refusal": refusal}]
        if said:
            items.append({"type": "message", "role": "assistant", "content": said})
        for call in message.calls:
            call_id = call.id or self._make_call_id()
            item = _build_call_item(call, call_id)
            self.output_types[call_id] = f"{item['type']}_output"
            items.append(item)
        return items

    def _build_output_item(self, message: Item, body: Mapping[str, Any]) -> ItemObject:
        call_id = message.result_for
        if call_id is None:
            call_id = self._unnamed_call_ids.pop(0) if self._unnamed_call_ids else self._make_call_id()
        output = self._convert_content(body.get("content"), is_answer=False)
        output_type = self.output_types.get(call_id, "function_call_output")
        match output_type:
            case "function_call_output" | "custom_tool_call_output":
                return {"type": output_type, "call_id": call_id, "output": output}
            case "mcp_approval_response":
                return {"type": output_type, "approval_request_id": call_id, "approve": False, "reason": message.text}
            case "local_shell_call_output":
                return {"type": output_type, "id": call_id, "output": message.text}
            case "apply_patch_call_output":
                return {"type": output_type, "call_id": call_id, "status": "failed", "output": message.text}
            case "tool_search_output":
                return {"type": output_type, "call_id": call_id, "execution": "client", "tools": []}
        return replace_output({"type": output_type, "call_id": call_id}, message.text)

    def _make_call_id(self) -> str:
        """Makes an id for a call without one. It depends on the place among such calls, so that the next view, which
        begins with the same messages, has the same ids."""
        call_id = f"call_{self._unnamed_calls:08x}"
        self._unnamed_calls += 1
        self._unnamed_call_ids.append(call_id)
        return call_id

    def _convert_content(self, content: object, *, is_answer: bool) -> str | list[Part]:
        """Returns a content as that of an item: a text as it is, parts without those that items cannot express."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = []
        for part in content if isinstance(content, list) else [content]:
            converted_part = self._convert_part(part, is_answer=is_answer)
            if converted_part is not None:
                parts.append(converted_part)
        return parts

    def _convert_part(self, part: object, *, is_answer: bool) -> Part | None:
        if is_reasoning_part(part):
            return None
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            self._left_out.add("content that is no part")
            return None
        kind = part.get("type")
        # Items have the same part for audio.
        converted_part = dict(part) if kind == "input_audio" else convert_known_chat_part(part, is_answer=is_answer)
        if converted_part is None:
            self._left_out.add_type(kind, "parts")
            return None
        self._left_out.add_fields(part, EXPRESSED_PART_FIELDS, "content parts")
        if isinstance(part.get(CACHE_BREAKPOINT_FIELD), Mapping):
            converted_part[CACHE_BREAKPOINT_FIELD] = part[CACHE_BREAKPOINT_FIELD]
        return converted_part

    def _note_signatures(self, body: Mapping[str, Any]) -> None:
        blocks = [body.get("reasoning_details"), body.get("thinking_blocks")]
        for block in [block for one in blocks if isinstance(one, list) for block in one]:
            if isinstance(block, Mapping) and block.get("signature"):
                self._left_out.add("signatures of reasoning")


def _build_call_item(call: ToolCall, call_id: str) -> ItemObject:
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": call_id, "name": call.name, "input": call.arguments}
    return {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": call.arguments}
