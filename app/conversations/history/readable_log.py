"""Turns a message of the log into a row for people to read: its text, calls and attachments. Pure.

Deleted and erased texts are left out, without a mark: the row has flags for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversations.erase.redaction import CALL_TYPES, read_deleted_parts
from app.conversations.items.item_building import DELETED, build_items, find_message_item_id
from app.conversations.items.item_content import build_reasoning_fields
from app.pipeline.view.view_restoration import read_request_facts

MAX_TEXT_CHARS: Final = 20_000
"""The longest text in a row; the whole text is in the message's item."""
MAX_CALLS: Final = 100
TITLE_CHARS: Final = 80
MessageBody = Mapping[str, Any]


def build_message_row(entry: LogMessage, turn: int, *, is_pinned: bool, summary_id: str | None) -> dict[str, Any]:
    """Builds the row of a message.

    Args:
        turn: the number of the message's turn.
        is_pinned: whether a pin covers the message.
        summary_id: the summary that covers the message; None: there is none.
    """
    body, meta = entry.message.body, entry.meta or {}
    deleted_kinds = _find_deleted_kinds(entry)
    texts = {
        "text": None if "message" in deleted_kinds else entry.message.text,
        "reasoning": None if "reasoning" in deleted_kinds else _read_reasoning_text(body),
        "refusal": None if "message" in deleted_kinds else _string_or_none(body.get("refusal")),
    }
    calls = [_build_call_row(call) for call in entry.message.tool_calls]
    shortened_texts = {name: None if text is None else text[:MAX_TEXT_CHARS] for name, text in texts.items()}
    return {
        "seq": entry.seq,
        "id": find_message_item_id(entry),
        "object": "conversation.message",
        "role": entry.message.role,
        **shortened_texts,
        "text": shortened_texts["text"] or "",
        "truncated": _exceeds_max_chars([*texts.values(), *(call["arguments"] for call in calls)])
        or len(calls) > MAX_CALLS,
        "tool_calls": [{**call, "arguments": call["arguments"][:MAX_TEXT_CHARS]} for call in calls[:MAX_CALLS]],
        "tool_call_id": _string_or_none(body.get("tool_call_id")),
        "name": _string_or_none(body.get("name")),
        "attachments": [] if "message" in deleted_kinds else _list_attachments(body),
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


def _classify_item_type(item_type: str) -> str:
    if item_type in CALL_TYPES:
        return "call"
    return "reasoning" if item_type == "reasoning" else "message"


def _read_reasoning_text(body: MessageBody) -> str | None:
    if body.get("role") != "assistant":
        return None
    parts = build_reasoning_fields(body)
    if parts is None:
        return None
    return "\n\n".join(str(one["text"]) for one in (*parts["summary"], *parts["content"])) or None


def _build_call_row(call: object) -> dict[str, Any]:
    fields = call if isinstance(call, Mapping) else {}
    custom, function = fields.get("custom"), fields.get("function")
    if isinstance(custom, Mapping):
        name, arguments = custom.get("name"), custom.get("input")
    elif isinstance(function, Mapping):
        name, arguments = function.get("name"), function.get("arguments")
    else:
        name, arguments = fields.get("type"), call
    return {
        "id": _string_or_none(fields.get("id")),
        "name": _string_or_none(name) or "",
        "arguments": _to_text(arguments),
    }


def _list_attachments(body: MessageBody) -> list[dict[str, str]]:
    content = body.get("content")
    attachments = [
        _describe_attachment(part) for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)
    ]
    if isinstance(body.get("audio"), Mapping):
        attachments.append({"type": "audio", "detail": "spoken"})
    return [one for one in attachments if one is not None]


def _describe_attachment(part: MessageBody) -> dict[str, str] | None:
    """Describes an attachment without its base64 data; None for a part that is no attachment."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "image", "detail": _shorten_url(url)}
        case {"type": "input_audio", "input_audio": dict(audio)}:
            return {"type": "audio", "detail": _string_or_none(audio.get("format")) or ""}
        case {"type": "file", "file": dict(file)}:
            file_name = _string_or_none(file.get("filename")) or _string_or_none(file.get("file_id")) or ""
            return {"type": "file", "detail": file_name[:200]}
    return None


def _shorten_url(url: str) -> str:
    """Returns the beginning of a URL; for a data URL its media type."""
    return url[: url.find(",")][:100].removesuffix(";base64") if url.startswith("data:") else url[:200]


def _exceeds_max_chars(texts: Iterable[str | None]) -> bool:
    return any(text is not None and len(text) > MAX_TEXT_CHARS for text in texts)


def _string_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def derive_title(metadata: Mapping[str, str], entries: Sequence[LogMessage]) -> str | None:
    """Returns a conversation's title: `title` of its metadata, or the beginning of its first user message."""
    if metadata.get("title"):
        return metadata["title"]
    first_user_message = next((entry for entry in entries if entry.message.role == "user"), None)
    if first_user_message is None or read_deleted_parts(first_user_message):
        return None
    words = " ".join(first_user_message.message.text[: 8 * TITLE_CHARS].split())
    return (words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…") or None
