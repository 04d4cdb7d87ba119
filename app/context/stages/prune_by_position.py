"""Prune large tool results by their place: head and tail of the older ones, a placeholder for the oldest."""

from __future__ import annotations

from app.context.plan.policy import Policy
from app.context.stages.draft import Draft, Editing
from app.conversation.messages import LogMessage

EVEN_SHARE = 0.5
"""Head and tail keep as much of a result: `soft_trim_chars` each."""


def prune_by_position(draft: Draft) -> Draft:
    """Results of at least `min_prunable_tool_chars` outside the last `keep_last_assistants` turns, where it is on."""
    policy = draft.scene.policy
    if not policy.position_pruning or (draft.pressure < policy.mask_pressure and draft.fits):
        return draft
    safe_seq = _safe_from(draft)
    first_seq, length = draft.boundary_seq, max(1, draft.scene.tail.end_seq - draft.boundary_seq)
    editing = draft.editing()
    for entry in draft.results():
        if entry.seq < safe_seq and len(entry.message.text) >= policy.min_prunable_tool_chars:
            _prune(editing, entry, policy, age=1 - (entry.seq - first_seq) / length)
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("pruned_by_position", tokens=removed) if removed else draft


def _prune(editing: Editing, entry: LogMessage, policy: Policy, age: float) -> None:
    if age >= policy.hard_clear_ratio:
        text = f"[tool result of {len(entry.message.text):,} characters left out]"
        editing.op(entry, "cleared", ("say", text))
    elif age >= policy.soft_trim_ratio:
        editing.op(entry, "truncated", ("contents", 2 * policy.soft_trim_chars, EVEN_SHARE))


def _safe_from(draft: Draft) -> int:
    """Where the turns begin that are left alone."""
    keep = draft.scene.policy.keep_last_assistants
    openings = [entry.from_seq for entry in draft.scene.tail.rounds if entry.opens_turn]
    if not keep:
        return draft.scene.tail.end_seq
    return openings[-keep] if len(openings) >= keep else 0
