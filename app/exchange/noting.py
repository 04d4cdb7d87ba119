"""What a request's log line and its span are told of the view that it got."""

from __future__ import annotations

from app.exchange.report import Report
from app.exchange.views import Turn
from app.observability.requests import request_facts
from app.observability.tracing import STREAMED, current_span


def note_view(turn: Turn, report: Report) -> None:
    """Note what the model is shown: numbers and names, for whoever wants to know them."""
    facts, span = request_facts(), current_span()
    if facts is None and not span.is_recording:
        return
    budget = report.budget
    whole = budget.calibrated(turn.instructions_tokens + turn.place.log_tokens)
    saved_tokens = max(0, whole - report.prompt_tokens)
    if facts is not None:
        facts.context_status = report.status
        facts.prompt_tokens = report.prompt_tokens
        facts.saved_tokens = saved_tokens
        facts.compaction_ms = report.compaction.get("duration_ms") or None
        facts.conversation_id = report.conversation_id
    if span.is_recording:
        span.set(
            {
                "concertina.context.status": report.status,
                "concertina.context.policy": report.policy,
                "concertina.context.pressure": report.prompt_tokens / max(1, budget.window - budget.reserve),
                "concertina.context.prompt_tokens": report.prompt_tokens,
                "concertina.context.saved_tokens": saved_tokens,
                "concertina.context.window": budget.window,
                "gen_ai.request.model": turn.request.model,
                STREAMED: turn.request.stream,
            }
        )
