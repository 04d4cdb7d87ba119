"""Finds capsules (`compaction.capsule`) in the messages of a request, whatever the protocol: the items, blocks or parts
of type `compaction` whose sealed content begins as a capsule does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.conversation.item import Item
from app.dialects.item_decoding import decode_item
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message import MessagesMessage

CAPSULE_MARKER: Final = b'"cc1.'
"""A body without these bytes has no capsule."""
CAPSULE_BEGIN: Final = CAPSULE_MARKER[1:].decode()


class CapsulePart(msgspec.Struct, frozen=True):
    """A capsule where it stands in a message."""

    text: str
    content: str | None
    """The readable text beside it; None if there is none."""
    index: int
    """Which item, block or part of its message it is."""


class _SealedPart(msgspec.Struct):
    """The fields of an item, block or part that may have a capsule."""

    type: Any = None
    content: Any = None
    encrypted_content: Any = None
    signature: Any = None


_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_part: Final = msgspec.json.Decoder(_SealedPart).decode


def split_at_capsules(raw: bytes) -> list[bytes | CapsulePart]:
    """Returns what a message consists of, in order: each capsule, and the messages of what stands before, between and
    after capsules. The bytes of a message without capsules stay as they are."""
    if CAPSULE_MARKER not in raw:
        return [raw]
    message = decode_item(raw)
    found: list[list[bytes] | CapsulePart] = []
    for index, part in enumerate(_list_raw_parts(message)):
        capsule = _read_capsule(part, index)
        if capsule is not None:
            found.append(capsule)
        elif found and isinstance(found[-1], list):
            found[-1].append(part)
        else:
            found.append([part])
    if not any(isinstance(one, CapsulePart) for one in found):
        return [raw]
    return [one if isinstance(one, CapsulePart) else _join_parts(message, one) for one in found]


def _list_raw_parts(message: Item) -> list[bytes]:
    if isinstance(message, ResponsesMessage):
        return message.raw_items
    if isinstance(message, MessagesMessage):
        return message.raw_blocks
    try:
        return [bytes(part) for part in _decode_array(_decode_members(message.raw)["content"])]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return []  # no list of parts


def _join_parts(message: Item, parts: Sequence[bytes]) -> bytes:
    """Returns the raw text of a message that has some of another's parts."""
    if isinstance(message, ResponsesMessage):
        return ResponsesMessage.from_raw_items(parts).raw
    if isinstance(message, MessagesMessage):
        return MessagesMessage.from_raw_blocks(message.native_role, parts).raw
    content = msgspec.Raw(b"[" + b",".join(parts) + b"]")
    return msgspec.json.encode({**_decode_members(message.raw), "content": content})


def _read_capsule(raw_part: bytes, index: int) -> CapsulePart | None:
    """Returns the capsule of an item, block or part; None if it has none."""
    if CAPSULE_MARKER not in raw_part:
        return None
    try:
        part = _decode_part(raw_part)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # what cannot be read is refused, or passed on, as without a capsule
    values = (part.encrypted_content, part.signature) if part.type == "compaction" else ()
    text = next((one for one in values if isinstance(one, str) and one.startswith(CAPSULE_BEGIN)), None)
    content = part.content if isinstance(part.content, str) else None
    return None if text is None else CapsulePart(text, content, index)
