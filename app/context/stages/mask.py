"""Mask tool results that a later answer has made use of: their beginning and end, more where there is room."""

from __future__ import annotations

from app.context.draft import Draft
from app.context.stages.weights import CHARS_PER_TOKEN, weights
from app.conversation.messages import LogMessage


def mask_results(draft: Draft) -> Draft:
    """From `mask_pressure` on, cut each consumed result to `mask_chars`, weighted by recency where more fits."""
    policy = draft.scene.policy
    if draft.pressure < policy.mask_pressure and draft.fits:
        return draft
    consumed = consumed_results(draft)
    if not consumed:
        return draft
    editing = draft.editing()
    chars = _chars(draft, consumed)
    masked = sum(editing.op(entry, "masked", ("contents", most)) for entry, most in zip(consumed, chars, strict=True))
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("masked", results=masked, tokens=removed) if masked else draft


def consumed_results(draft: Draft) -> list[LogMessage]:
    """Results that stand before an assistant's message with text; those after it are still to be read."""
    last_seq = next((entry.seq for entry in reversed(draft.scene.tail.messages) if _speaks(entry)), -1)
    return [entry for entry in draft.results() if entry.seq < last_seq]


def _speaks(entry: LogMessage) -> bool:
    return entry.message.role == "assistant" and bool(entry.message.text.strip())


def _chars(draft: Draft, consumed: list[LogMessage]) -> list[int]:
    """What each keeps: `mask_chars`, and by recency its share of the room that this leaves below the goal."""
    policy = draft.scene.policy
    lengths = [len(entry.message.text) for entry in consumed]
    saved = sum(max(0, length - policy.mask_chars) for length in lengths) // CHARS_PER_TOKEN
    goal = int(draft.scene.limit_tokens * policy.mask_pressure * policy.target_ratio)
    room_chars = max(0, goal - (draft.tokens - saved)) * CHARS_PER_TOKEN
    by_age = weights(len(consumed), policy.oldest_share)
    whole = sum(by_age)
    return [policy.mask_chars + int(room_chars * weight / whole) for weight in by_age]
