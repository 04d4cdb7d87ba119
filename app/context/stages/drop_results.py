"""Drop the contents of tool results: the call stays, with a short stub as its result."""

from __future__ import annotations

from app.context.stages.draft import Draft


def drop_results(draft: Draft) -> Draft:
    """Results, oldest first, until the goal is reached; those of the newest round only if nothing else fits."""
    if draft.is_at_goal:
        return draft
    rounds = draft.scene.tail.rounds
    newest_seq = rounds[-1].from_seq if rounds else 0
    editing, dropped = draft.editing(), 0
    slack_tokens = draft.scene.limit_tokens - draft.scene.goal_tokens
    for entry in draft.results():
        if editing.excess_tokens <= (slack_tokens if entry.seq >= newest_seq else 0):
            break
        text = f"[tool result of {len(entry.message.text):,} characters left out]"
        dropped += editing.op(entry, "cleared", ("say", text))
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("results_dropped", results=dropped, tokens=removed) if dropped else draft
