"""Finds capsules (`compaction.capsule`) in the messages of a request, whatever the protocol: the items, blocks or parts
of type `compaction` whose sealed content begins as a capsule does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from app.conversation.item import Item
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.item_decoding import decode_item
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message import MessagesMessage

CAPSULE_MARKER: Final = b'"cc1.'
"""A body without these bytes has no capsule."""
CAPSULE_BEGIN: Final = CAPSULE_MARKER[1:].decode()
COMPACTION: Final = "compaction"
SEALED_FIELDS: Final = ("encrypted_content", "signature")


def split_at_capsules(raw: bytes) -> list[bytes | str]:
    """Returns what a message consists of, in order: each capsule as a text, and the messages of what stands before,
    between and after capsules. The bytes of a message without capsules stay as they are."""
    if CAPSULE_MARKER not in raw:
        return [raw]
    message = decode_item(raw)
    found: list[list[bytes] | str] = []
    for part in _list_raw_parts(message):
        capsule = _read_capsule(part)
        if capsule is not None:
            found.append(capsule)
        elif found and isinstance(found[-1], list):
            found[-1].append(part)
        else:
            found.append([part])
    if not any(isinstance(one, str) for one in found):
        return [raw]
    return [one if isinstance(one, str) else _join_parts(message, one) for one in found]


def _list_raw_parts(message: Item) -> list[bytes]:
    if isinstance(message, ResponsesMessage):
        return message.raw_items
    if isinstance(message, MessagesMessage):
        return message.raw_blocks
    content = decode_body(message).get("content")
    return [orjson.dumps(part) for part in content] if isinstance(content, list) else []


def _join_parts(message: Item, parts: Sequence[bytes]) -> bytes:
    """Returns the raw text of a message that has some of another's parts."""
    if isinstance(message, ResponsesMessage):
        return ResponsesMessage.from_raw_items(parts).raw
    if isinstance(message, MessagesMessage):
        return MessagesMessage.from_raw_blocks(message.native_role, parts).raw
    return ChatMessage.from_body({**decode_body(message), "content": [orjson.loads(part) for part in parts]}).raw


def _read_capsule(raw_part: bytes) -> str | None:
    """Returns the capsule of an item, block or part; None if it has none."""
    part: Any = orjson.loads(raw_part) if CAPSULE_MARKER in raw_part else None
    if not isinstance(part, dict) or part.get("type") != COMPACTION:
        return None
    values = (value for name in SEALED_FIELDS if isinstance(value := part.get(name), str))
    return next((value for value in values if value.startswith(CAPSULE_BEGIN)), None)
