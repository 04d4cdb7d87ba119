"""Restores encrypted reasoning that a client sends back without its content, because it did not ask for the content.
OpenAI finds it by the item's id, among the items that it stores. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.dialects.items.item_kinds import read_type
from app.dialects.items.message import ResponsesMessage

REASONING_MARKER: Final = b'"reasoning"'
ENCRYPTED_MARKER: Final = b'"encrypted_content"'


def find_bare_reasoning(raws: Sequence[bytes]) -> int | None:
    """Returns the index of the first message with reasoning whose content only an id names; None if there is none."""
    for index, raw in enumerate(raws):
        # Most messages do not have these bytes, so they are not decoded.
        if REASONING_MARKER in raw and any(_read_bare_id(item) for _, item in _iterate_items(raw)):
            return index
    return None


def restore_reasoning(raws: Sequence[bytes], stored_raws: Sequence[bytes]) -> list[bytes]:
    """Returns the messages with the stored item in the place of each bare reasoning item of the same id.

    Args:
        raws: the messages of a request.
        stored_raws: answers of the log.
    """
    stored = {
        item["id"]: raw_item
        for raw in stored_raws
        if ENCRYPTED_MARKER in raw
        for raw_item, item in _iterate_items(raw)
        if read_type(item) == "reasoning" and item.get("encrypted_content") and isinstance(item.get("id"), str)
    }
    return [_restore_message(raw, stored) if stored and REASONING_MARKER in raw else raw for raw in raws]


def _restore_message(raw: bytes, stored: Mapping[str, bytes]) -> bytes:
    items = list(_iterate_items(raw))
    if not any(_read_bare_id(item) in stored for _, item in items):
        return raw
    return ResponsesMessage.from_raw_items([stored.get(_read_bare_id(item), raw_item) for raw_item, item in items]).raw


def _iterate_items(raw: bytes) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Yields the items of a message, each with its bytes; none of a chat message or of instructions."""
    if raw[:1] != b"[":
        return
    message = ResponsesMessage(raw)
    for raw_item, item in zip(message.raw_items, message.items, strict=True):
        if isinstance(item, dict):
            yield raw_item, item


def _read_bare_id(item: Mapping[str, Any]) -> str:
    """Returns the id of a reasoning item without encrypted content; empty for any other item."""
    item_id = item.get("id")
    is_bare = read_type(item) == "reasoning" and isinstance(item_id, str) and not item.get("encrypted_content")
    return str(item_id) if is_bare else ""
