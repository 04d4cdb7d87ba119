"""Truncate tool results that are longer than any should be, by tokens."""

from __future__ import annotations

from app.context.draft import Draft
from app.context.excerpt import share_within


def truncate_results(draft: Draft) -> Draft:
    """Results above `max_tool_result_tokens`, oldest first, until the goal is reached."""
    if draft.is_at_goal:
        return draft
    cap_tokens = draft.scene.policy.max_tool_result_tokens
    count = draft.scene.count.message
    editing = draft.editing()
    for entry in draft.results():
        if editing.excess_tokens <= 0:
            break
        if editing.tokens(entry) > cap_tokens:
            share = share_within(entry.message.body, entry.tokens, cap_tokens, count)
            editing.op(entry, "truncated", ("shorten", share))
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("results_truncated", tokens=removed) if removed else draft
