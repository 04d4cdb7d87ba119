"""Masks tool results: their beginning and end stay, and more of them if there is room.

`mask_results` masks results that a later answer has used. `mask_results_further` masks more before anything is dropped.
Neither touches a result that the model has not read yet while it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.context.plan.policy import ContextPolicy
from app.context.stages.cap_messages import shorten_new_messages
from app.context.stages.draft import Draft, DraftEditor
from app.context.stages.truncation_caps import CHARS_PER_TOKEN, compute_age_weights, compute_equal_cap
from app.conversation.conversation_types import LogMessage


def mask_results(draft: Draft) -> Draft:
    """Cuts each result that an answer has used to `mask_chars`, newer ones to more if there is room, once
    `mask_pressure` is reached.
    """
    policy = draft.context.policy
    if draft.pressure < policy.trimming.mask_pressure and draft.fits_limit:
        return draft
    consumed = list_consumed_results(draft)
    if not consumed:
        return draft
    editing = draft.start_editing()
    chars = _compute_kept_chars(draft, consumed)
    masked = sum(
        editing.apply_operation_if_smaller(entry, "masked", ("contents", most))
        for entry, most in zip(consumed, chars, strict=True)
    )
    return editing.finish_stage("masked", results=masked)


def mask_results_further(draft: Draft) -> Draft:
    """Cuts all results that the model has read to one length so that the view reaches the goal, none below
    `mask_chars`. Of new messages that do not fit, those that must be cut anyway are cut next.
    """
    masked = _cut_results_equally(draft, draft.list_editable_results(), draft.context.goal_tokens)
    if draft.context.new_excess_tokens:
        masked = shorten_new_messages(masked, only_needed=True)
    return masked.note_removed_tokens(draft, "masked_more")


def mask_read_results_fully(draft: Draft) -> Draft:
    """Returns the view with all read results cut to the minimum; unchanged if messages were left out of it already."""
    if draft.boundary_seq:
        return draft
    # A goal of 0 tokens is never reached: every read result is cut as far as possible.
    return mask_results_further(replace(draft, context=replace(draft.context, goal_ratio=0.0)))


def list_consumed_results(draft: Draft) -> list[LogMessage]:
    """Returns the results before the last assistant message with text: the model has used them. Later ones may still be
    needed.
    """
    answers = (one for one in reversed(draft.context.tail.messages) if one.message.role == "assistant")
    last_seq = next((one.seq for one in answers if one.message.text.strip()), -1)
    return [entry for entry in draft.list_editable_results() if entry.seq < last_seq]


def _compute_kept_chars(draft: Draft, consumed: list[LogMessage]) -> list[int]:
    """Returns how many characters each result keeps: `mask_chars`, and by age a share of the room that is left below
    the goal.
    """
    policy = draft.context.policy
    lengths = [len(entry.message.text) for entry in consumed]
    saved = sum(max(0, length - policy.trimming.mask_chars) for length in lengths) // CHARS_PER_TOKEN
    goal = int(draft.context.limit_tokens * policy.trimming.mask_pressure * policy.cut.target_ratio)
    room_chars = max(0, goal - (draft.tokens - saved)) * CHARS_PER_TOKEN
    by_age = compute_age_weights(len(consumed), policy.trimming.oldest_share)
    whole = sum(by_age)
    return [policy.trimming.mask_chars + int(room_chars * weight / whole) for weight in by_age]


def _cut_results_equally(draft: Draft, results: Sequence[LogMessage], goal_tokens: int) -> Draft:
    """Returns the view with results cut to the largest common number of tokens at which it reaches the goal; shorter
    ones stay whole. If that number is less than `mask_chars`, results are cut to `mask_chars`.
    """
    editing = draft.start_editing()
    room_tokens = sum(map(editing.count_message_tokens, results)) - (draft.tokens - goal_tokens)
    cap_tokens = compute_equal_cap([editing.count_message_tokens(entry) for entry in results], room_tokens)
    chars = draft.context.policy.trimming.mask_chars
    for entry in results:
        if editing.count_message_tokens(entry) <= cap_tokens:
            continue
        if cap_tokens * CHARS_PER_TOKEN < chars or not editing.cap_message(entry, cap_tokens):
            editing.apply_operation_if_smaller(entry, "masked", ("contents", chars))
    return editing.build_draft()


EVEN_HEAD_SHARE = 0.5
"""Head and tail keep the same number of characters: `soft_trim_chars` each."""


def prune_by_position(draft: Draft) -> Draft:
    """Prunes results of at least `min_prunable_tool_chars` outside the last `keep_last_assistants` turns, if the policy
    says so.
    """
    policy = draft.context.policy
    if not policy.position_pruning or (draft.pressure < policy.trimming.mask_pressure and draft.fits_limit):
        return draft
    safe_seq = _find_first_unpruned_seq(draft)
    first_seq, length = draft.boundary_seq, max(1, draft.context.tail.end_seq - draft.boundary_seq)
    editing = draft.start_editing()
    for entry in draft.list_editable_results():
        if entry.seq < safe_seq and len(entry.message.text) >= policy.trimming.min_prunable_tool_chars:
            _prune_result(editing, entry, policy, age=1 - (entry.seq - first_seq) / length)
    return editing.finish_stage("pruned_by_position")


def _prune_result(editing: DraftEditor, entry: LogMessage, policy: ContextPolicy, age: float) -> None:
    if age >= policy.trimming.hard_clear_ratio:
        text = f"[tool result of {len(entry.message.text):,} characters left out]"
        editing.apply_operation_if_smaller(entry, "cleared", ("say", text))
    elif age >= policy.trimming.soft_trim_ratio:
        editing.apply_operation_if_smaller(
            entry, "truncated", ("contents", 2 * policy.trimming.soft_trim_chars, EVEN_HEAD_SHARE)
        )


def _find_first_unpruned_seq(draft: Draft) -> int:
    """Returns where the turns begin that are not pruned."""
    keep = draft.context.policy.trimming.keep_last_assistants
    openings = draft.context.tail.turn_seqs
    if not keep:
        return draft.context.tail.end_seq
    return openings[-keep] if len(openings) >= keep else 0
