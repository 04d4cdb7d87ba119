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
import orjson

from app.context.view.message_edits import REASONING_FIELDS
from app.conversation.conversation_types import Conversation, LogMessage, Message, Summary
from app.conversation.message_checks import TOOL_ROLES
from app.conversations.items.item_content import build_message_parts, build_reasoning_fields, build_tool_output
from app.pipeline.resolve.resolved_request import STORED_INSTRUCTIONS

Item = dict[str, Any]
ItemKind = Literal["msg", "fc", "fco", "ctc", "rs"]
"""Message, function call, a call's output, custom tool call, reasoning."""

ITEM_FIELDS: Final = "item"
"""Key in `LogMessage.meta`: fields of a client's items that a chat message does not have, by `message`, `reasoning`,
`output`, and a list of `calls`."""
DELETED: Final = "deleted"
"""Key in `LogMessage.meta`: which of the message's items were deleted."""
ITEM_ROLES: Final = ("user", "assistant", "system", "developer")
LINK_HEX_CHARS: Final = 24
"""How many hex digits of a link an id contains: 96 bits."""
_ITEM_ID: Final = re.compile(rf"(?:msg|fc|fco|ctc|rs)_([0-9a-f]{{8}})([0-9a-f]{{{LINK_HEX_CHARS}}})([0-9a-f]{{2,6}})")


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
    return f"{kind}_{entry.seq:08x}{entry.link.hex()[:LINK_HEX_CHARS]}{part:02x}"


def parse_item_id(text: str) -> ParsedItemId | None:
    """Parses the id of a message's item; None for any other id."""
    match = _ITEM_ID.fullmatch(text)
    return ParsedItemId(int(match[1], 16), match[2], int(match[3], 16)) if match else None


def build_items(entry: LogMessage, *, call: LogMessage | None = None, with_deleted: bool = False) -> list[Item]:
    """Builds the items of a message, in order.

    Args:
        call: for a tool's result, the message with the call, if it is known. It tells a custom tool's result from a
            function's. Ids do not depend on it.
        with_deleted: with deleted items, in their redacted form.
    """
    items = _assign_item_ids(
        entry,
        _build_tool_result_items(entry, call) if entry.message.role in TOOL_ROLES else _build_message_items(entry),
    )
    deleted = () if with_deleted else ((entry.meta or {}).get(DELETED) or {}).get("parts", ())
    return [item for part, item in enumerate(items) if part not in deleted]


def find_message_item_id(entry: LogMessage) -> str:
    """Returns the id of a message's `message` item; of its first item if it has none."""
    if _begins_with_message_item(entry.message):
        return build_item_id("msg", entry, 0)
    items = build_items(entry, with_deleted=True)
    return str(next((item["id"] for item in items if item["type"] == "message"), items[0]["id"]))


def _begins_with_message_item(message: Message) -> bool:
    """Returns whether a message's first item is certainly a `message` item. That is so for nearly all messages, and
    their ids are then made without building items."""
    content = message.body.get("content")
    if not isinstance(content, str) or not content or message.role in TOOL_ROLES:
        return False
    return not any(message.body.get(name) for name in REASONING_FIELDS)


def build_instruction_items(conversation: Conversation) -> list[Item]:
    """Builds items from a conversation's stored instructions, which come before the log."""
    items = []
    for index, raw in enumerate(conversation.state.get(STORED_INSTRUCTIONS, ())):
        body = Message(raw.encode()).body
        items.append({"id": _build_instruction_id(index, raw), **_build_message_fields(body), "status": "completed"})
    return items


def find_instruction_index(conversation: Conversation, item_id: str) -> int | None:
    """Returns the index of the stored instruction that an item id names; None for any other id."""
    raws = conversation.state.get(STORED_INSTRUCTIONS, ())
    return next((index for index, raw in enumerate(raws) if _build_instruction_id(index, raw) == item_id), None)


def build_compaction_item(summary: Summary) -> Item:
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


def _assign_item_ids(entry: LogMessage, kinds_and_items: Sequence[tuple[ItemKind, Item]]) -> list[Item]:
    created = {"created_at": int(entry.created_at.timestamp())} if entry.created_at else {}
    return [
        {"id": build_item_id(kind, entry, part), **item, **created} for part, (kind, item) in enumerate(kinds_and_items)
    ]


def _build_message_items(entry: LogMessage) -> list[tuple[ItemKind, Item]]:
    body, client_fields = entry.message.body, _read_client_item_fields(entry)
    status = "incomplete" if entry.incomplete else "completed"
    kinds_and_items: list[tuple[ItemKind, Item]] = []
    if body.get("role") == "assistant" and (reasoning := build_reasoning_fields(body)) is not None:
        kinds_and_items.append(
            ("rs", {"type": "reasoning", **reasoning, "status": status, **client_fields.get("reasoning", {})})
        )
    calls = _build_call_items(entry, client_fields, status)
    said = _build_message_fields(body)
    if said["content"] or not (kinds_and_items or calls):
        kinds_and_items.append(
            ("msg", _add_client_item_fields({**said, "status": status}, client_fields.get("message", {})))
        )
    return kinds_and_items + calls


def _build_message_fields(body: Mapping[str, Any]) -> Item:
    role = body.get("role")
    further_fields = {name: body[name] for name in ("name", "audio") if body.get(name)}
    return {
        "type": "message",
        "role": role if role in ITEM_ROLES else "unknown",
        "content": build_message_parts(body),
        **further_fields,
    }


def _add_client_item_fields(item: Item, client_fields: Mapping[str, Any]) -> Item:
    """Adds the client's other fields to an item and its parts."""
    parts = client_fields.get("content", ())
    # A redaction may have changed the content; then the client's fields fit no part any more.
    if len(parts) == len(item["content"]):
        item["content"] = [
            _drop_foreign_annotations({**part, **more}) for part, more in zip(item["content"], parts, strict=True)
        ]
    return {**item, **{name: value for name, value in client_fields.items() if name != "content"}}


def _drop_foreign_annotations(part: Item) -> Item:
    """Removes annotations from any part but a model's text, as OpenAI's schema requires."""
    return part if part["type"] == "output_text" else {name: part[name] for name in part if name != "annotations"}


def _build_call_items(entry: LogMessage, client_fields: Mapping[str, Any], status: str) -> list[tuple[ItemKind, Item]]:
    if entry.message.role != "assistant":
        return []
    calls = entry.message.tool_calls
    call_fields = client_fields.get("calls", ())
    more = call_fields if len(call_fields) == len(calls) else [{}] * len(calls)
    return [_build_call_item(call, entry.seq, index, status, more[index]) for index, call in enumerate(calls)]


def _build_call_item(
    call: Any, seq: int, index: int, status: str, client_fields: Mapping[str, Any]
) -> tuple[ItemKind, Item]:
    fields = call if isinstance(call, Mapping) else {}
    call_id = fields.get("id")
    call_id_field = {"call_id": call_id if isinstance(call_id, str) else derive_call_id(seq, index)}
    custom = fields.get("custom")
    if isinstance(custom, Mapping):
        custom_call_item = {
            "type": "custom_tool_call",
            **call_id_field,
            "name": _to_text(custom.get("name")),
            "input": _to_text(custom.get("input")),
        }
        return "ctc", {**custom_call_item, "status": status, **client_fields}
    function = fields.get("function")
    if isinstance(function, Mapping):
        name_and_arguments = {"name": _to_text(function.get("name")), "arguments": _to_text(function.get("arguments"))}
    else:
        name_and_arguments = {"name": _to_text(fields.get("type")), "arguments": _to_text(call)}
    return "fc", {"type": "function_call", **call_id_field, **name_and_arguments, "status": status, **client_fields}


def derive_call_id(seq: int, index: int = 0) -> str:
    """Makes an id for a call without one, such as the deprecated `function_call`."""
    return f"call_{seq:08x}{index:02x}"


def _build_tool_result_items(entry: LogMessage, call: LogMessage | None) -> list[tuple[ItemKind, Item]]:
    body = entry.message.body
    calls: Sequence[object] = call.message.tool_calls if call is not None else ()
    call_id = body.get("tool_call_id")
    if not isinstance(call_id, str):
        call_id = derive_call_id(call.seq) if call is not None else None
    customs = [one.get("id") for one in calls if isinstance(one, Mapping) and isinstance(one.get("custom"), Mapping)]
    is_custom = call_id is not None and call_id in customs
    item: Item = {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": call_id,
        "output": build_tool_output(body.get("content")),
        "status": "completed",
    }
    if isinstance(body.get("name"), str):
        item["name"] = body["name"]
    return [("fco", {**item, **_read_client_item_fields(entry).get("output", {})})]


def _read_client_item_fields(entry: LogMessage) -> Mapping[str, Any]:
    return (entry.meta or {}).get(ITEM_FIELDS) or {}


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
