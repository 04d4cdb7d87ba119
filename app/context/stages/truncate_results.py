"""Truncate tool results that are longer than any should be, by tokens."""

from __future__ import annotations

from app.context.stages.draft import Draft


def truncate_results(draft: Draft) -> Draft:
    """Results above `max_tool_result_tokens`, oldest first, until the goal is reached."""
    if draft.is_at_goal:
        return draft
    cap_tokens = draft.scene.policy.max_tool_result_tokens
    editing = draft.editing()
    for entry in draft.results():
        if editing.excess_tokens <= 0:
            break
        editing.cap(entry, cap_tokens)
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("results_truncated", tokens=removed) if removed else draft
