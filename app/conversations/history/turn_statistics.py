"""The answers of a conversation in numbers: what each was sent, and what would have been sent without us. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.context.plan.budget import budget_for
from app.context.plan.policy import Policy
from app.conversation.messages import LogMessage
from app.conversations.items.items import message_item_id
from app.pipeline.view.view_history import LOG_TOKENS, SEEN, THRESHOLD, asked_in

Facts = Mapping[str, Any]


def answer_row(answer: LogMessage, turn: int, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """An answer; what is only known of answers that came through the gateway is None of others.

    Args:
        turn: the number of its turn.
        policies: as they are configured now, for answers from before their line was kept with them.
    """
    meta: Facts = answer.meta or {}
    context: Facts = meta.get("context") or {}
    return {
        "id": message_item_id(answer),
        "object": "conversation.turn",
        "turn": turn,
        "seq": answer.seq,
        "created_at": None if answer.created_at is None else int(answer.created_at.timestamp()),
        "model": asked_in(meta).get("model"),
        "status": meta.get("context_status"),
        "finish_reason": meta.get("finish_reason"),
        "incomplete": answer.incomplete,
        **_of_context(context),
        **_of_usage(context, meta.get("usage") or {}),
        **_of_view(context, meta.get(SEEN) or {}, answer, policies),
    }


def _of_context(context: Facts) -> dict[str, Any]:
    return {
        **{name: context.get(name) for name in ("policy", "window", "limit", "prompt_tokens", "compaction")},
        "summaries": len(context["summaries"]) if "summaries" in context else None,
        "recovered": bool(context.get("recovered")),
    }


def _of_usage(context: Facts, usage: Facts) -> dict[str, Any]:
    """What the provider reported."""
    counted: Facts = context.get("calibration") or {}
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    return {
        "reported_tokens": counted.get("reported_tokens"),
        "cached_tokens": counted.get("cached_tokens"),
        "completion_tokens": written if isinstance(written, int) else None,
    }


def _of_view(context: Facts, seen: Facts, answer: LogMessage, policies: Mapping[str, Policy]) -> dict[str, Any]:
    if not context:
        return {"threshold_tokens": None, "log_tokens": None, "saved_tokens": None, "boundary_seq": None}
    sent = int(context["prompt_tokens"])
    whole = seen.get(LOG_TOKENS)
    if whole is None:
        whole = _estimated_log_tokens(context, answer)
    shown: Facts = seen.get("shown") or {}
    boundary: Facts = shown.get("boundary") or {}
    return {
        "threshold_tokens": _threshold_tokens(context, seen, policies),
        "log_tokens": whole,
        "saved_tokens": max(0, whole - sent),
        "boundary_seq": boundary.get("to_seq", 0),
    }


def _estimated_log_tokens(context: Facts, answer: LogMessage) -> int:
    """For answers from before it was kept: the log alone, or what was sent, if that is more (instructions)."""
    raw = answer.tokens_total - answer.tokens
    return max(int(context["prompt_tokens"]), round(raw * _ratio(context)))


def _threshold_tokens(context: Facts, seen: Facts, policies: Mapping[str, Policy]) -> int | None:
    told: int | None = context.get("compacts_above", seen.get(THRESHOLD))
    if told is not None:
        return told
    policy = policies.get(str(context.get("policy")))
    return None if policy is None else budget_for(policy, window=int(context["window"])).soft


def _ratio(context: Facts) -> float:
    """The slope, or the ratio that was kept before there were slopes."""
    calibration = context.get("calibration") or {}
    return float(calibration.get("slope") or calibration.get("ratio") or 1.0)
