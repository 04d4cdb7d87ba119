"""Cap single messages: no tool result and no call's arguments may take more than their share of the budget."""

from __future__ import annotations

from collections.abc import Sequence

from app.context.stages.age_weights import CHARS_PER_TOKEN, level, weights
from app.context.stages.draft import Draft
from app.context.stages.round_lines import RESULT_ROLES
from app.conversation.messages import LogMessage


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


def fade_results(draft: Draft) -> Draft:
    """Apply the first band that the pressure reaches."""
    pressure = draft.pressure
    bands = sorted(draft.scene.policy.fade_bands, reverse=True)
    share = next((share for threshold, share in bands if pressure >= threshold), None)
    if share is None:
        return draft
    faded = results_capped(draft, share)
    removed = draft.tokens - faded.tokens
    return faded.noted("faded", pressure=round(pressure, 3), share=share, tokens=removed) if removed else draft


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


SHORTEST_TOKENS = 48
"""No message is cut below this: less says nothing."""


def shorten_long_messages(draft: Draft) -> Draft:
    """Lower one cap for all long tool results until the view fits, then one for the other messages."""
    request = draft.scene.tail.newest_user
    shown = [entry for entry in draft.shown() if request is None or entry.seq != request.seq]
    results = [entry for entry in shown if entry.message.role in RESULT_ROLES]
    others = [entry for entry in shown if entry.message.role not in RESULT_ROLES]
    before = draft.tokens
    for group in (results, others):
        if group and not draft.fits:
            draft = _cap(draft, group)
    removed = before - draft.tokens
    return draft.noted("shortened", messages=len(draft.edits), tokens=removed) if removed else draft


def _cap(draft: Draft, group: Sequence[LogMessage]) -> Draft:
    """The highest cap under which the view fits; the lowest if none is low enough."""
    editing = draft.editing()
    sizes = [editing.tokens(entry) for entry in group]
    room_tokens = sum(sizes) - (draft.tokens - draft.scene.limit_tokens)
    capped = _excerpts(draft, group, max(SHORTEST_TOKENS, level(sizes, room_tokens)))
    return capped if capped.fits else _excerpts(capped, group, SHORTEST_TOKENS)


def _excerpts(draft: Draft, group: Sequence[LogMessage], cap_tokens: int) -> Draft:
    editing = draft.editing()
    for entry in group:
        editing.cap(entry, cap_tokens)
    return editing.draft()
