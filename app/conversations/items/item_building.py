"""Builds items of OpenAI's Conversations API from a log. Pure.

A chat message becomes one item or several: its reasoning, its text, each of its calls. An item's id contains the
message's link, so the id is the same in every branch that shares the message. Fields that a client sent with an item
and that a chat message does not have are in `LogMessage.meta["item"]` (`conversations.items.item_parser`), and are
added to the item again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES, Item, ToolCall
from app.dialects.item_decoding import decode_item
from app.dialects.items.item_kinds import CALL_OUTPUT_TYPES
from app.dialects.items.item_parts import (
    begins_with_text,
    build_item_text_part,
    build_message_parts,
    build_reasoning_fields,
    build_speaker_fields,
    build_tool_output,
)
from app.dialects.items.message import ResponsesMessage
from app.pipeline.resolve.resolved_request import STORED_INSTRUCTIONS

ItemObject = dict[str, Any]
ItemKind = Literal["msg", "fc", "fco", "ctc", "rs"]
"""Message or an item of a hosted tool, call, a call's output, call of a custom tool, reasoning."""

ITEM_FIELDS: Final = "item"
"""Key in `LogMessage.meta`: fields of a client's items that a chat message does not have, by `message`, `reasoning`,
`output`, and a list of `calls`."""
DELETED: Final = "deleted"
"""Key in `LogMessage.meta`: which of the message's items were deleted."""
ITEM_ROLES: Final = ("user", "assistant", "system", "developer")
CALL_TYPES: Final = tuple(CALL_OUTPUT_TYPES)
"""Types of items that are tool calls."""
KINDS_BY_TYPE: Final[Mapping[str, ItemKind]] = {
    **dict.fromkeys(CALL_OUTPUT_TYPES, "fc"),
    **dict.fromkeys(CALL_OUTPUT_TYPES.values(), "fco"),
    "custom_tool_call": "ctc",
    "reasoning": "rs",
}
"""How ids of items begin. A redacted item of a hosted tool is a message, and keeps its id: both begin with `msg`."""
LINK_HEX_CHARS: Final = 24
"""How many hex digits of a link an id contains: 96 bits."""
_ITEM_ID: Final = re.compile(
    rf"(?:msg|fc|fco|ctc|rs|item)_([0-9a-f]{{8}})([0-9a-f]{{{LINK_HEX_CHARS}}})([0-9a-f]{{2,6}})"
)


class ParsedItemId(msgspec.Struct, frozen=True):
    """The parts of an item id: the message's `seq` and link, and the number of the item in the message."""

    seq: int
    link_start: str
    """The first `LINK_HEX_CHARS` hex digits of the message's link."""
    part: int

    def matches_message(self, entry: LogMessage) -> bool:
        """Returns whether this id names an item of the message."""
        return entry.seq == self.seq and entry.link.hex().startswith(self.link_start)


def build_item_id(kind: ItemKind, entry: LogMessage, part: int) -> str:
    """Returns the id of one of a message's items. Parts count from 0 in the order reasoning, text, calls."""
    return _format_item_id(kind, entry.seq, entry.link.hex(), part)


def build_answer_item_id(seq: int, link_hex: str) -> str:
    """Returns an id of an answer's first item, from its place in the log."""
    return _format_item_id("msg", seq, link_hex, 0)


def _format_item_id(kind: ItemKind, seq: int, link_hex: str, part: int) -> str:
    return f"{kind}_{seq:08x}{link_hex[:LINK_HEX_CHARS]}{part:02x}"


def parse_item_id(text: str) -> ParsedItemId | None:
    """Parses the id of a message's item; None for any other id."""
    match = _ITEM_ID.fullmatch(text)
    return ParsedItemId(int(match[1], 16), match[2], int(match[3], 16)) if match else None


def build_items(entry: LogMessage, *, call: LogMessage | None = None, with_deleted: bool = False) -> list[ItemObject]:
    """Builds the items of a message, in order. A message of the Responses protocol has its own items.

    Args:
        call: for a tool's result, the message with the call, if it is known. It tells a custom tool's result from a
            function's. Ids do not depend on it.
        with_deleted: with deleted items, in their redacted form.
    """
    if isinstance(entry.message, ResponsesMessage):
        kinds_and_items = _build_own_items(entry.message)
    elif entry.message.role in TOOL_RESULT_ROLES:
        kinds_and_items = _build_tool_result_items(entry, call)
    else:
        kinds_and_items = _build_message_items(entry)
    items = _assign_item_ids(entry, kinds_and_items)
    deleted = () if with_deleted else ((entry.meta or {}).get(DELETED) or {}).get("parts", ())
    return [item for part, item in enumerate(items) if part not in deleted]


def find_message_item_id(entry: LogMessage) -> str:
    """Returns the id of a message's `message` item; of its first item if it has none."""
    if _begins_with_message_item(entry.message):
        return build_item_id("msg", entry, 0)
    items = build_items(entry, with_deleted=True)
    return str(next((item["id"] for item in items if item["type"] == "message"), items[0]["id"]))


def _begins_with_message_item(message: Item) -> bool:
    """Returns whether a message's first item is certainly a `message` item. That is so for nearly all messages, and
    their ids are then made without building items."""
    if isinstance(message, ResponsesMessage):
        return False
    return message.role not in TOOL_RESULT_ROLES and begins_with_text(message)


def build_instruction_items(conversation: Conversation) -> list[ItemObject]:
    """Builds items from a conversation's stored instructions, which come before the log."""
    items = []
    for index, raw in enumerate(conversation.state.get(STORED_INSTRUCTIONS, ())):
        fields = _build_message_fields(decode_item(raw.encode()))
        items.append({"id": _build_instruction_id(index, raw), **fields, "status": "completed"})
    return items


def find_instruction_index(conversation: Conversation, item_id: str) -> int | None:
    """Returns the index of the stored instruction that an item id names; None for any other id."""
    raws = conversation.state.get(STORED_INSTRUCTIONS, ())
    return next((index for index, raw in enumerate(raws) if _build_instruction_id(index, raw) == item_id), None)


def build_compaction_item(summary: Summary) -> ItemObject:
    """Builds OpenAI's `compaction` item from a summary. Its text is not encrypted: whoever may read the conversation
    may read it."""
    return {
        "id": summary.id,
        "type": "compaction",
        "encrypted_content": summary.text,
        "text": summary.text,
        "from_seq": summary.from_seq,
        "to_seq": summary.to_seq,
        "through_turn": summary.through_turn,
        "tokens": summary.tokens,
        "kind": summary.kind,
        "created_at": int(summary.created_at.timestamp()),
    }


def _build_instruction_id(index: int, raw: str) -> str:
    return f"msg_i{index:04x}{hashlib.sha256(raw.encode()).hexdigest()[:LINK_HEX_CHARS]}"


def _assign_item_ids(entry: LogMessage, kinds_and_items: Sequence[tuple[ItemKind, ItemObject]]) -> list[ItemObject]:
    created = {"created_at": int(entry.created_at.timestamp())} if entry.created_at else {}
    return [
        {"id": build_item_id(kind, entry, part), **item, **created} for part, (kind, item) in enumerate(kinds_and_items)
    ]


def _build_own_items(message: ResponsesMessage) -> list[tuple[ItemKind, ItemObject]]:
    """Returns the items of a message of the Responses protocol. The client's or provider's `id` becomes `client_id`,
    because the gateway gives the item an id of its own."""
    kinds_and_items: list[tuple[ItemKind, ItemObject]] = []
    for item in message.items:
        client_item: ItemObject = {"role": "system", "content": item} if isinstance(item, str) else dict(item)
        client_id = client_item.pop("id", None)
        fields = {"status": "completed", "type": "message", **client_item}
        if isinstance(fields.get("content"), str):
            fields["content"] = [build_item_text_part(fields["content"], is_answer=fields.get("role") == "assistant")]
        if client_id is not None:
            fields["client_id"] = client_id
        kinds_and_items.append((KINDS_BY_TYPE.get(fields["type"], "msg"), fields))
    return kinds_and_items


def _build_message_items(entry: LogMessage) -> list[tuple[ItemKind, ItemObject]]:
    message, client_fields = entry.message, _read_client_item_fields(entry)
    status = "incomplete" if entry.incomplete else "completed"
    kinds_and_items: list[tuple[ItemKind, ItemObject]] = []
    if message.role == "assistant" and (reasoning := build_reasoning_fields(message)) is not None:
        kinds_and_items.append(
            ("rs", {"type": "reasoning", **reasoning, "status": status, **client_fields.get("reasoning", {})})
        )
    calls = _build_call_items(entry, client_fields, status)
    said = _build_message_fields(message)
    if said["content"] or not (kinds_and_items or calls):
        kinds_and_items.append(
            ("msg", _add_client_item_fields({**said, "status": status}, client_fields.get("message", {})))
        )
    return kinds_and_items + calls


def _build_message_fields(message: Item) -> ItemObject:
    return {
        "type": "message",
        "role": message.role if message.role in ITEM_ROLES else "unknown",
        "content": build_message_parts(message),
        **build_speaker_fields(message),
    }


def _add_client_item_fields(item: ItemObject, client_fields: Mapping[str, Any]) -> ItemObject:
    """Adds the client's other fields to an item and its parts."""
    parts = client_fields.get("content", ())
    # A redaction may have changed the content; then the client's fields fit no part any more.
    if len(parts) == len(item["content"]):
        item["content"] = [
            _drop_foreign_annotations({**part, **more}) for part, more in zip(item["content"], parts, strict=True)
        ]
    return {**item, **{name: value for name, value in client_fields.items() if name != "content"}}


def _drop_foreign_annotations(part: ItemObject) -> ItemObject:
    """Removes annotations from any part but a model's text, as OpenAI's schema requires."""
    return part if part["type"] == "output_text" else {name: part[name] for name in part if name != "annotations"}


def _build_call_items(
    entry: LogMessage, client_fields: Mapping[str, Any], status: str
) -> list[tuple[ItemKind, ItemObject]]:
    if entry.message.role != "assistant":
        return []
    calls = entry.message.calls
    call_fields = client_fields.get("calls", ())
    more = call_fields if len(call_fields) == len(calls) else [{}] * len(calls)
    return [_build_call_item(call, entry.seq, index, status, more[index]) for index, call in enumerate(calls)]


def _build_call_item(
    call: ToolCall, seq: int, index: int, status: str, client_fields: Mapping[str, Any]
) -> tuple[ItemKind, ItemObject]:
    named = {"call_id": derive_call_id(seq, index) if call.id is None else call.id, "name": call.name}
    more = {"status": status, **client_fields}
    if call.kind == "custom":
        return "ctc", {"type": "custom_tool_call", **named, "input": call.arguments, **more}
    return "fc", {"type": "function_call", **named, "arguments": call.arguments, **more}


def derive_call_id(seq: int, index: int = 0) -> str:
    """Makes an id for a call without one, such as a deprecated one."""
    return f"call_{seq:08x}{index:02x}"


def _build_tool_result_items(entry: LogMessage, call: LogMessage | None) -> list[tuple[ItemKind, ItemObject]]:
    calls = call.message.calls if call is not None else ()
    call_id = entry.message.result_for
    if call_id is None and call is not None:
        call_id = derive_call_id(call.seq)
    is_custom = call_id is not None and call_id in [one.id for one in calls if one.kind == "custom"]
    item: ItemObject = {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": call_id,
        "output": build_tool_output(entry.message),
        "status": "completed",
    }
    if entry.message.name is not None:
        item["name"] = entry.message.name
    return [("fco", {**item, **_read_client_item_fields(entry).get("output", {})})]


def _read_client_item_fields(entry: LogMessage) -> Mapping[str, Any]:
    return (entry.meta or {}).get(ITEM_FIELDS) or {}
