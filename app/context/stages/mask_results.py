"""Mask tool results: their beginning and end, more where there is room.

`mask_results` masks those that a later answer has made use of. `mask_more` goes further before anything is dropped, and
`give_room` gives back to results that are still to be read what the stages left free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.context.plan.policy import Policy
from app.context.stages.age_weights import CHARS_PER_TOKEN, level, weights
from app.context.stages.draft import Draft, Editing
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


def mask_more(draft: Draft) -> Draft:
    """Cut all results to one length so that the view reaches the goal; those that are still to be read only where it
    would not fit otherwise. None is cut below `mask_chars`."""
    unread = unread_results(draft)
    first_unread_seq = unread[0].seq if unread else draft.scene.tail.end_seq
    read = [entry for entry in draft.results() if entry.seq < first_unread_seq]
    masked = _cut_to_one_length(draft, read, draft.scene.goal_tokens)
    if not masked.fits:
        masked = _cut_to_one_length(masked, unread, draft.scene.limit_tokens)
    removed = draft.tokens - masked.tokens
    return masked.noted("masked_more", tokens=removed) if removed else draft


def least_masked(draft: Draft) -> Draft:
    """The view with all results that were read at their shortest, if nothing was left out of it; else as it is."""
    if draft.boundary_seq:
        return draft
    return mask_more(replace(draft, scene=replace(draft.scene, goal_ratio=0.0)))


def give_room(before: Draft, after: Draft) -> Draft:
    """A view that fits after its stages, with as much as there is room for of the results that are still to be read.

    Args:
        before: the view before the stages; what was cut of it already stays as it is.
    """
    cut = [entry for entry in unread_results(after) if after.edits.get(entry.seq) != before.edits.get(entry.seq)]
    if not cut:
        return after
    kept = {seq: edit for seq, edit in after.edits.items() if all(seq != entry.seq for entry in cut)}
    whole = after.with_edits(kept | {entry.seq: before.edits[entry.seq] for entry in cut if entry.seq in before.edits})
    roomy = _cut_to_one_length(whole, cut, after.scene.limit_tokens)
    return roomy if after.tokens < roomy.tokens and roomy.fits else after


def unread_results(draft: Draft) -> list[LogMessage]:
    """Results behind which the model has said nothing yet."""
    messages = draft.scene.tail.messages
    last_seq = next((entry.seq for entry in reversed(messages) if entry.message.role == "assistant"), -1)
    return [entry for entry in draft.results() if entry.seq > last_seq]


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


def _cut_to_one_length(draft: Draft, results: Sequence[LogMessage], goal_tokens: int) -> Draft:
    """The view with results cut to the largest number of tokens at which it reaches the goal: short ones stay whole.
    Where that is less than `mask_chars`, they are cut to that."""
    editing = draft.editing()
    room_tokens = sum(map(editing.tokens, results)) - (draft.tokens - goal_tokens)
    cap_tokens = level([editing.tokens(entry) for entry in results], room_tokens)
    chars = draft.scene.policy.mask_chars
    for entry in results:
        if editing.tokens(entry) <= cap_tokens:
            continue
        if cap_tokens * CHARS_PER_TOKEN < chars or not editing.cap(entry, cap_tokens):
            editing.op(entry, "masked", ("contents", chars))
    return editing.draft()


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
