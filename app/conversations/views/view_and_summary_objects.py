"""Builds the API's objects for views and summaries. Tokens of messages and summaries are raw counts; tokens that are
compared to a window are calibrated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.context.plan.budget import Budget
from app.context.plan.outline import Pin, Plan
from app.context.user_text.user_text import UserLine
from app.context.view.message_fate import MessageFate
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.items.boundary_item_ids import ItemIdsBySeq
from app.conversations.items.item_building import find_message_item_id
from app.pipeline.respond.context_status import build_user_text_fields
from app.pipeline.turn.last_view_and_calibration import find_end_of_shown_summaries

EXCERPT_CHARS: Final = 400


def build_common_view_fields(
    conversation: Conversation, plan: Plan, budget: Budget, *, model: str, policy: str
) -> dict[str, Any]:
    """Builds the fields that the objects of both kinds of views have."""
    prompt_tokens = budget.calibrate_tokens(plan.prompt_tokens)
    return {
        "conversation_id": conversation.id,
        "model": model,
        "policy": policy,
        "window": budget.window,
        "limit": budget.limit,
        "prompt_tokens": prompt_tokens,
        "pressure": round(budget.compute_limit_pressure(prompt_tokens), 4),
        "status": plan.status,
        "dropped_messages": plan.dropped_message_count,
        "user_text": {
            **build_user_text_fields(plan, budget),
            "seqs": list(dict.fromkeys(one.seq for one in plan.user_text)),
        },
    }


def build_view_message_row(entry: LogMessage, message_fate: MessageFate, *, is_pinned: bool) -> dict[str, Any]:
    """Builds the row of a message and its fate in a view."""
    return {
        "id": find_message_item_id(entry),
        "seq": message_fate.seq,
        "role": message_fate.role,
        "disposition": message_fate.kind,
        "summary_id": message_fate.summary_id,
        "tokens": message_fate.tokens,
        "shown_tokens": message_fate.shown_tokens,
        "pinned": is_pinned,
        "quoted": message_fate.is_quoted,
        "reason": message_fate.reason,
        "text": build_message_excerpt(entry),
    }


def build_pin_object(pin: Pin, entries: Sequence[LogMessage]) -> dict[str, Any]:
    """Builds the object of a pinned round with its messages; its id is that of its first item."""
    return {
        "id": find_message_item_id(entries[0]),
        "object": "conversation.pin",
        "from_seq": pin.from_seq,
        "to_seq": pin.to_seq,
        "tokens": pin.tokens,
        "messages": [
            {
                "id": find_message_item_id(entry),
                "seq": entry.seq,
                "role": entry.message.role,
                "text": build_message_excerpt(entry),
            }
            for entry in entries
        ],
    }


def build_user_text_object(entry: LogMessage, lines: Sequence[UserLine]) -> dict[str, Any]:
    """Builds the object of a message of which lines are kept."""
    return {
        "id": find_message_item_id(entry),
        "object": "conversation.user_text",
        "seq": entry.seq,
        "verbatim": any(one.is_whole for one in lines),
        "tokens": sum(one.tokens for one in lines),
        "text": "\n".join(entry.message.text[one.start : one.end].strip() for one in lines),
    }


def build_message_excerpt(entry: LogMessage) -> str:
    """Returns a message in one line: the beginning of its text, and the names of its calls."""
    call_texts = [f"calls {call.name}" for call in (*entry.message.calls, *entry.message.hosted_calls)]
    return " ".join([*entry.message.text[: 4 * EXCERPT_CHARS].split(), *call_texts])[:EXCERPT_CHARS]


def build_view_summary_object(summary: Summary, item_ids: ItemIdsBySeq) -> dict[str, Any]:
    """Builds the object of a summary in a view."""
    return {
        "id": summary.id,
        "from_item": item_ids.get(summary.from_seq),
        "through_item": item_ids.get(summary.to_seq - 1),
        "from_seq": summary.from_seq,
        "to_seq": summary.to_seq,
        "through_turn": summary.through_turn,
        "tokens": summary.tokens,
        "kind": summary.kind,
        "model": summary.model,
        "revision": summary.revision,
    }


def build_range_objects(plan: Plan, item_ids: ItemIdsBySeq) -> list[dict[str, Any]]:
    """Builds the objects of the ranges that a plan wants to have summarized."""
    return [
        {
            "from_item": item_ids.get(one.from_seq),
            "through_item": item_ids.get(one.to_seq - 1),
            "from_seq": one.from_seq,
            "to_seq": one.to_seq,
            "folds": list(one.folds),
        }
        for one in plan.to_summarize
    ]


def build_summary_object(
    summary: Summary, conversation: Conversation, item_ids: ItemIdsBySeq, *, is_active: bool
) -> dict[str, Any]:
    """Builds the object of a summary as a resource."""
    return {
        **build_view_summary_object(summary, item_ids),
        "object": "conversation.summary",
        "conversation_id": conversation.id,
        "active": is_active,
        "shown": is_active and summary.to_seq <= find_end_of_shown_summaries(conversation.state),
        "folds": list(summary.folds),
        "prompt_version": summary.prompt_version,
        "created_at": int(summary.created_at.timestamp()),
        "duration_ms": summary.duration_ms,
        "usage": summary.usage,
        "text": summary.text,
    }


def build_revision_object(revision: Summary) -> dict[str, Any]:
    """Builds the object of one revision of a summary."""
    return {
        "revision": revision.revision,
        "text": revision.text,
        "kind": revision.kind,
        "model": revision.model,
        "tokens": revision.tokens,
        "created_at": int(revision.created_at.timestamp()),
    }
