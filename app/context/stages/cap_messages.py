"""Cap single messages: no tool result and no call's arguments may take more than their share of the budget."""

from __future__ import annotations

from app.context.stages.age_weights import CHARS_PER_TOKEN, weights
from app.context.stages.draft import Draft


def cap_messages(draft: Draft) -> Draft:
    """Results are cut to `result_ratio` of what instructions leave, less the older they are; arguments likewise to
    `arguments_ratio`, and remain a JSON object."""
    policy = draft.scene.policy
    if draft.pressure < policy.mask_pressure and draft.fits:
        return draft
    capped = _arguments_capped(results_capped(draft, 1.0))
    removed = draft.tokens - capped.tokens
    return capped.noted("capped", tokens=removed) if removed else draft


def results_capped(draft: Draft, share: float) -> Draft:
    """Each result within `share` of the cap for one result, times the weight of its age."""
    policy = draft.scene.policy
    room_chars = draft.scene.effective_tokens * CHARS_PER_TOKEN
    cap_chars = min(int(policy.result_ratio * room_chars), policy.result_max_chars) * share
    results = draft.results()
    editing = draft.editing()
    for entry, weight in zip(results, weights(len(results), policy.oldest_share), strict=True):
        chars = max(1, int(cap_chars * weight))
        if len(editing.text(entry)) > chars:
            editing.op(entry, "truncated", ("contents", chars))
    return editing.draft()


def _arguments_capped(draft: Draft) -> Draft:
    policy = draft.scene.policy
    room_chars = draft.scene.effective_tokens * CHARS_PER_TOKEN
    chars = max(1, min(int(policy.arguments_ratio * room_chars), policy.arguments_max_chars))
    editing = draft.editing()
    for entry in draft.shown():
        if len(entry.message.raw) > chars and entry.message.tool_calls:
            editing.op(entry, "truncated", ("arguments", chars))
    return editing.draft()
