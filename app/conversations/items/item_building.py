"""Builds items of OpenAI's Conversations API from a log. Pure.

A chat message becomes one item or several: its reasoning, its text, each of its calls. An item's id contains the
message's link, so the id is the same in every branch that shares the message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES
from app.dialects.item_decoding import decode_item
from app.dialects.items.chat_message_items import build_shown_items
from app.dialects.items.item_kinds import CALL_OUTPUT_TYPES
from app.dialects.items.item_parts import (
    build_tool_output,
)
from app.dialects.items.listed_items import complete_item
from app.dialects.items.message import ResponsesMessage
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS

ItemObject = dict[str, Any]
ItemKind = Literal["msg", "fc", "fco", "ctc", "rs"]
"""Message or an item of a hosted tool, call, a call's output, call of a custom tool, reasoning."""

DELETED: Final = "deleted"
"""Key in `LogMessage.meta`: which of the message's items were deleted."""
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
        items = [_build_own_item(item) for item in entry.message.items]
    elif entry.message.role in TOOL_RESULT_ROLES:
        items = [_build_tool_result_item(entry, call)]
    else:
        status = "incomplete" if entry.incomplete else "completed"
        items = build_shown_items(
            entry.message,
            status,
            lambda one, number, _: derive_call_id(entry.seq, number) if one.id is None else one.id,
        )
    items = _assign_item_ids(entry, items)
    deleted = () if with_deleted else ((entry.meta or {}).get(DELETED) or {}).get("parts", ())
    return [item for part, item in enumerate(items) if part not in deleted]


def find_message_item_id(entry: LogMessage) -> str:
    """Returns the id of a message's `message` item; of its first item if it has none."""
    items = build_items(entry, with_deleted=True)
    return str(next((item["id"] for item in items if item["type"] == "message"), items[0]["id"]))


def build_instruction_items(conversation: Conversation) -> list[ItemObject]:
    """Builds items from a conversation's stored instructions, which come before the log."""
    items = []
    for index, raw in enumerate(conversation.state.get(STORED_INSTRUCTIONS, ())):
        (item,) = build_shown_items(decode_item(raw.encode()), "completed", lambda *_: "")
        items.append({"id": _build_instruction_id(index, raw), **item})
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


def _assign_item_ids(entry: LogMessage, items: Sequence[ItemObject]) -> list[ItemObject]:
    created = {"created_at": int(entry.created_at.timestamp())} if entry.created_at else {}
    return [
        {"id": build_item_id(KINDS_BY_TYPE.get(item["type"], "msg"), entry, part), **item, **created}
        for part, item in enumerate(items)
    ]


def _build_own_item(item: ItemObject | str) -> ItemObject:
    """Returns an item of a message of the Responses protocol. The client's or provider's `id` becomes `client_id`,
    because the gateway gives the item an id of its own."""
    client_item: ItemObject = {"role": "system", "content": item} if isinstance(item, str) else dict(item)
    client_id = client_item.pop("id", None)
    fields = {"status": "completed", **complete_item(client_item)}
    return fields if client_id is None else {**fields, "client_id": client_id}


def derive_call_id(seq: int, index: int = 0) -> str:
    """Makes an id for a call without one, such as a deprecated one."""
    return f"call_{seq:08x}{index:02x}"


def _build_tool_result_item(entry: LogMessage, call: LogMessage | None) -> ItemObject:
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
    return item if entry.message.name is None else {**item, "name": entry.message.name}
