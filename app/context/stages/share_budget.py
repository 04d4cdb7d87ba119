"""The emergency: share the budget evenly among all messages, and cut once more."""

from __future__ import annotations

from app.context.stages.age_weights import CHARS_PER_TOKEN
from app.context.stages.draft import Draft
from app.context.stages.drop_rounds import drop_oldest


def share_evenly(draft: Draft) -> Draft:
    """Each message but the newest user's keeps an even share, at least `emergency_chars`; then the oldest go."""
    if draft.fits:
        return draft
    scene = draft.scene
    request = scene.tail.newest_user
    shown = [entry for entry in draft.shown() if request is None or entry.seq != request.seq]
    if not shown:
        return draft
    editing = draft.editing()
    fixed_tokens = draft.tokens - sum(editing.tokens(entry) for entry in shown)
    room_chars = max(0, scene.limit_tokens - fixed_tokens) * CHARS_PER_TOKEN
    chars = max(scene.policy.emergency_chars, room_chars // len(shown))
    for entry in shown:
        if len(editing.text(entry)) > chars:
            editing.op(entry, "truncated", ("contents", chars))
        if len(entry.message.raw) > chars and entry.message.tool_calls:
            editing.op(entry, "truncated", ("arguments", chars))
    removed = draft.excess_tokens - editing.excess_tokens
    shared = editing.draft().noted("shared_evenly", chars=chars, tokens=removed)
    return shared if shared.fits else drop_oldest(shared)
