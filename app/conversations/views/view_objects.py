"""Views and summaries as the objects that the API answers with. Token numbers of messages and summaries are raw
counts; those that are compared with a window are calibrated. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.context.plan.outline import Pin, Plan
from app.context.view.message_fate import Disposition
from app.context.view.message_origins import Origin
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.items.item_ids import Ends
from app.conversations.items.items import message_item_id
from app.pipeline.view.view_preview import Preview

EXCERPT_CHARS: Final = 400


def preview_body(
    shown: Preview,
    *,
    model: str,
    policy: str,
    summaries: Sequence[Mapping[str, Any]],
    ranges: Sequence[Mapping[str, Any]],
    messages: Mapping[str, Any],
) -> dict[str, Any]:
    """What would be sent now."""
    plan = shown.plan
    return {
        "object": "context.preview",
        **_head(shown, model, policy),
        "fits": plan.fits,
        "instructions": [message.body for message in shown.instructions],
        "summaries": list(summaries),
        "to_summarize": list(ranges),
        "notes": [{"code": note.code, **note.facts} for note in plan.notes],
        "messages": dict(messages),
    }


def seen_body(
    shown: Preview,
    *,
    item_id: str,
    is_exact: bool,
    model: str,
    policy: str,
    summaries: Sequence[Mapping[str, Any]],
    messages: Mapping[str, Any],
) -> dict[str, Any]:
    """What the model saw for an answer."""
    return {
        "object": "context.seen",
        **_head(shown, model, policy),
        "item_id": item_id,
        "exact": is_exact,
        "fits": True,
        "summaries": list(summaries),
        "messages": dict(messages),
    }


def _head(shown: Preview, model: str, policy: str) -> dict[str, Any]:
    return {
        "conversation_id": shown.conversation.id,
        "model": model,
        "policy": policy,
        "window": shown.budget.window,
        "limit": shown.limit_tokens,
        "prompt_tokens": shown.prompt_tokens,
        "pressure": round(shown.budget.limit_pressure(shown.prompt_tokens), 4),
        "compacts_above": shown.compacts_above,
        "status": shown.plan.status,
        "dropped_messages": shown.plan.dropped,
    }


def message_row(entry: LogMessage, row: Disposition, *, is_pinned: bool) -> dict[str, Any]:
    """A message of the log, and what becomes of it in a view."""
    return {
        "id": message_item_id(entry),
        "seq": row.seq,
        "role": row.role,
        "disposition": row.kind,
        "summary_id": row.chunk_id,
        "tokens": row.tokens,
        "shown_tokens": row.shown_tokens,
        "pinned": is_pinned,
        "quoted": row.is_quoted,
        "reason": row.reason,
        "text": excerpt(entry),
    }


def sent_place(origin: Origin) -> dict[str, Any]:
    """What a message of a view stands for."""
    return {
        "kind": origin.kind,
        "from_seq": origin.from_seq,
        "to_seq": origin.to_seq,
        "before_seq": origin.before_seq,
        "parts": [msgspec.to_builtins(part) for part in origin.parts],
    }


def pin_object(pin: Pin, entries: Sequence[LogMessage]) -> dict[str, Any]:
    """A pinned round, by the id of its first item, with the messages that it has."""
    return {
        "id": message_item_id(entries[0]),
        "object": "conversation.pin",
        "from_seq": pin.from_seq,
        "to_seq": pin.to_seq,
        "tokens": pin.tokens,
        "messages": [
            {"id": message_item_id(entry), "seq": entry.seq, "role": entry.message.role, "text": excerpt(entry)}
            for entry in entries
        ],
    }


def excerpt(entry: LogMessage) -> str:
    """A message in one line: the beginning of its text, the names of its calls."""
    calls = [call.get(call.get("type", "function")) for call in entry.message.tool_calls]
    named = [f"calls {call.get('name')}" for call in calls if isinstance(call, dict)]
    return " ".join([*entry.message.text[: 4 * EXCERPT_CHARS].split(), *named])[:EXCERPT_CHARS]


def view_summary(chunk: Chunk, ends: Ends) -> dict[str, Any]:
    """A summary that stands in a view."""
    return {
        "id": chunk.id,
        "from_item": ends.get(chunk.from_seq),
        "through_item": ends.get(chunk.to_seq - 1),
        "from_seq": chunk.from_seq,
        "to_seq": chunk.to_seq,
        "through_turn": chunk.through_turn,
        "tokens": chunk.tokens,
        "kind": chunk.kind,
        "model": chunk.model,
        "revision": chunk.revision,
    }


def range_object(from_seq: int, to_seq: int, folds: Sequence[str], ends: Ends) -> dict[str, Any]:
    """A range that is to be summarized."""
    return {
        "from_item": ends.get(from_seq),
        "through_item": ends.get(to_seq - 1),
        "from_seq": from_seq,
        "to_seq": to_seq,
        "folds": list(folds),
    }


def ranges_of(plan: Plan, ends: Ends) -> list[dict[str, Any]]:
    """What a plan would have summarized."""
    return [range_object(one.from_seq, one.to_seq, one.folds, ends) for one in plan.to_summarize]


def summary_object(chunk: Chunk, conversation: Conversation, ends: Ends, *, is_active: bool) -> dict[str, Any]:
    """A summary as a resource."""
    return {
        **view_summary(chunk, ends),
        "object": "conversation.summary",
        "conversation_id": conversation.id,
        "active": is_active,
        "folds": list(chunk.folds),
        "prompt_version": chunk.prompt_version,
        "created_at": int(chunk.created_at.timestamp()),
        "duration_ms": chunk.duration_ms,
        "usage": chunk.usage,
        "text": chunk.text,
    }


def revision_object(chunk: Chunk) -> dict[str, Any]:
    """One of the texts that a summary has had."""
    return {
        "revision": chunk.revision,
        "text": chunk.text,
        "kind": chunk.kind,
        "model": chunk.model,
        "tokens": chunk.tokens,
        "created_at": int(chunk.created_at.timestamp()),
    }
