"""Turns a message of the log into a row for people to read: its text, calls and attachments. Pure.

Deleted and erased texts are left out, without a mark: the row has flags for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.conversations.erase.redaction import read_deleted_parts
from app.conversations.items.item_building import CALL_TYPES, DELETED, build_items, find_message_item_id
from app.dialects.body.attachments import describe_attachments
from app.dialects.items.item_parts import build_reasoning_fields
from app.pipeline.view.view_restoration import read_request_facts

MAX_TEXT_CHARS: Final = 20_000
"""The longest text in a row; the whole text is in the message's item."""
MAX_CALLS: Final = 100
TITLE_CHARS: Final = 80


def build_message_row(entry: LogMessage, turn: int, *, is_pinned: bool, summary_id: str | None) -> dict[str, Any]:
    """Builds the row of a message.

    Args:
        turn: the number of the message's turn.
        is_pinned: whether a pin covers the message.
        summary_id: the summary that covers the message; None: there is none.
    """
    message, meta = entry.message, entry.meta or {}
    deleted_kinds = _find_deleted_kinds(entry)
    is_text_gone = "message" in deleted_kinds and not _has_undeleted_message(entry)
    texts = {
        "text": None if is_text_gone else message.text,
        "reasoning": None if "reasoning" in deleted_kinds else _read_reasoning_text(message),
        "refusal": None if is_text_gone else message.refusal_text,
    }
    calls: list[dict[str, Any]] = [
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        for call in (*message.calls, *message.hosted_calls)
    ]
    shortened_texts = {name: None if text is None else text[:MAX_TEXT_CHARS] for name, text in texts.items()}
    return {
        "seq": entry.seq,
        "id": find_message_item_id(entry),
        "object": "conversation.message",
        "role": message.role,
        **shortened_texts,
        "text": shortened_texts["text"] or "",
        "truncated": _exceeds_max_chars([*texts.values(), *(call["arguments"] for call in calls)])
        or len(calls) > MAX_CALLS,
        "tool_calls": [{**call, "arguments": call["arguments"][:MAX_TEXT_CHARS]} for call in calls[:MAX_CALLS]],
        "tool_call_id": message.result_for,
        "name": message.name,
        "attachments": [] if is_text_gone else describe_attachments(message),
        "tokens": entry.tokens,
        "turn": turn,
        "created_at": None if entry.created_at is None else int(entry.created_at.timestamp()),
        "model": read_request_facts(meta).get("model"),
        "finish_reason": meta.get("finish_reason"),
        "pinned": is_pinned,
        "deleted": bool(deleted_kinds),
        "erased": bool(deleted_kinds) and bool((meta.get(DELETED) or {}).get("erased")),
        "incomplete": entry.incomplete,
        "summary_id": summary_id,
    }


def _find_deleted_kinds(entry: LogMessage) -> frozenset[str]:
    """Returns which kinds of items of a message were deleted: `message`, `reasoning`, `call`."""
    parts = read_deleted_parts(entry)
    if not parts:
        return frozenset()
    item_types = [str(item["type"]) for item in build_items(entry, with_deleted=True)]
    return frozenset(_classify_item_type(item_types[part]) for part in parts if part < len(item_types))


def _has_undeleted_message(entry: LogMessage) -> bool:
    """Returns whether a message has a `message` item that was not deleted. A message of the Responses API may have
    several; redacted items are among them, each with a mark."""
    return any(item["type"] == "message" for item in build_items(entry))


def _classify_item_type(item_type: str) -> str:
    if item_type in CALL_TYPES:
        return "call"
    return "reasoning" if item_type == "reasoning" else "message"


def _read_reasoning_text(message: Item) -> str | None:
    if message.role != "assistant":
        return None
    parts = build_reasoning_fields(message)
    if parts is None:
        return None
    return "\n\n".join(str(one["text"]) for one in (*parts["summary"], *parts["content"])) or None


def _exceeds_max_chars(texts: Iterable[str | None]) -> bool:
    return any(text is not None and len(text) > MAX_TEXT_CHARS for text in texts)


def derive_title(metadata: Mapping[str, str], entries: Sequence[LogMessage]) -> str | None:
    """Returns a conversation's title: `title` of its metadata, or the beginning of its first user message."""
    if metadata.get("title"):
        return metadata["title"]
    first_user_message = next((entry for entry in entries if entry.message.role == "user"), None)
    if first_user_message is None or read_deleted_parts(first_user_message):
        return None
    words = " ".join(first_user_message.message.text[: 8 * TITLE_CHARS].split())
    return (words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…") or None
