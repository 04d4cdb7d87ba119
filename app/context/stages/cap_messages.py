"""Caps single messages: no tool result and no call's arguments may take more than their share of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from app.context.stages.draft import Draft
from app.context.stages.truncation_caps import CHARS_PER_TOKEN, compute_age_weights, compute_equal_cap
from app.conversation.conversation_types import LogMessage
from app.conversation.item import TOOL_RESULT_ROLES


def cap_messages(draft: Draft) -> Draft:
    """Cuts results to `result_ratio` of the window without reserve and instructions, older ones further; likewise
    arguments to `arguments_ratio`. Arguments remain a JSON object.
    """
    policy = draft.context.policy
    if draft.pressure < policy.trimming.mask_pressure and draft.fits_limit:
        return draft
    return _cap_arguments(cap_results(draft, 1.0)).note_removed_tokens(draft, "capped")


def cap_results(draft: Draft, share: float) -> Draft:
    """Cuts each result to `share` of the cap for one result, times the weight of its age."""
    policy = draft.context.policy
    room_chars = draft.context.message_window_tokens * CHARS_PER_TOKEN
    cap_chars = min(int(policy.trimming.result_ratio * room_chars), policy.trimming.result_max_chars) * share
    results = draft.list_editable_results()
    editing = draft.start_editing()
    for entry, weight in zip(results, compute_age_weights(len(results), policy.trimming.oldest_share), strict=True):
        chars = max(1, int(cap_chars * weight))
        if len(editing.read_message_text(entry)) > chars:
            editing.apply_operation_if_smaller(entry, "truncated", ("contents", chars))
    return editing.build_draft()


def _cap_arguments(draft: Draft) -> Draft:
    policy = draft.context.policy
    room_chars = draft.context.message_window_tokens * CHARS_PER_TOKEN
    chars = max(1, min(int(policy.trimming.arguments_ratio * room_chars), policy.trimming.arguments_max_chars))
    editing = draft.start_editing()
    for entry in draft.iterate_editable_messages():
        if len(entry.message.raw) > chars and entry.message.calls_tools:
            editing.apply_operation_if_smaller(entry, "truncated", ("arguments", chars))
    return editing.build_draft()


def fade_results(draft: Draft) -> Draft:
    """Applies the highest band that the pressure reaches."""
    pressure = draft.pressure
    bands = sorted(draft.context.policy.trimming.fade_bands, reverse=True)
    share = next((share for threshold, share in bands if pressure >= threshold), None)
    if share is None:
        return draft
    return cap_results(draft, share).note_removed_tokens(draft, "faded", pressure=round(pressure, 3), share=share)


def truncate_results(draft: Draft) -> Draft:
    """Truncates results above `max_tool_result_tokens`, oldest first, until the goal is reached."""
    editing = draft.start_editing()
    for entry in editing.iterate_until_goal(draft.list_editable_results()):
        editing.cap_message(entry, draft.context.policy.trimming.max_tool_result_tokens)
    return editing.finish_stage("results_truncated")


MIN_MESSAGE_TOKENS = 48
"""No message is cut below this: a shorter one says nothing."""


def shorten_long_messages(draft: Draft) -> Draft:
    """Lowers one cap for all long tool results until the view fits, then one cap for the other messages. New messages
    are not cut here.
    """
    shown = draft.list_editable_but_request()
    results = [entry for entry in shown if entry.message.role in TOOL_RESULT_ROLES]
    others = [entry for entry in shown if entry.message.role not in TOOL_RESULT_ROLES]
    shortened = draft
    for group in (results, others):
        if group and not shortened.fits_limit:
            shortened = _cap_to_fit(shortened, group)
    return shortened.note_removed_tokens(draft, "shortened", messages=len(shortened.edits))


def shorten_new_messages(draft: Draft, *, only_needed: bool = False) -> Draft:
    """Cuts new messages until the view fits, the oldest first, each as little as possible. A message that does not fit
    alone is cut before them all. The newest user message is the request itself: it is not cut.

    Args:
        only_needed: cut only messages that would have to be cut beside the shortest form of the rest, and leave half of
            the limit to all that is new, even if the view then does not fit.
    """
    request = draft.context.tail.newest_user_message
    editing = draft.start_editing()
    shown = [entry for entry in draft.list_new_messages() if request is None or entry.seq != request.seq]
    sizes = {entry.seq: editing.count_message_tokens(entry) for entry in shown}
    total_tokens, excess_tokens = sum(sizes.values()), draft.tokens - draft.context.limit_tokens
    if only_needed:
        excess_tokens = min(excess_tokens, total_tokens - draft.context.limit_tokens // 2)
    too_long = [entry for entry in shown if sizes[entry.seq] > total_tokens - excess_tokens]
    if only_needed:
        freed_before = accumulate((entry.tokens - MIN_MESSAGE_TOKENS for entry in shown), initial=0)
        needed = zip(shown, freed_before, strict=False)
        shown = [entry for entry, freed in needed if freed < draft.context.new_excess_tokens]
    for least_tokens, group in (((total_tokens - excess_tokens) // 2, too_long), (0, shown)):
        for entry in group:
            before = editing.count_message_tokens(entry)
            if excess_tokens > 0:
                editing.cap_message(entry, max(MIN_MESSAGE_TOKENS, least_tokens, before - excess_tokens))
                excess_tokens -= before - editing.count_message_tokens(entry)
    return editing.finish_stage("new_messages_shortened")


def restore_new_messages(before: Draft, after: Draft) -> Draft:
    """Returns a view that fits after its stages, with as much of its new messages as there is room for.

    Args:
        before: the view before the stages. A message that was cut in it already stays cut.
    """
    new_seqs = {entry.seq for entry in after.list_new_messages()}
    if all(after.edits.get(seq) == before.edits.get(seq) for seq in new_seqs):
        return after
    kept = {seq: edit for seq, edit in after.edits.items() if seq not in new_seqs}
    whole = replace(after, edits=kept | {seq: edit for seq, edit in before.edits.items() if seq in new_seqs})
    roomy = shorten_new_messages(whole)
    return roomy if after.tokens < roomy.tokens and roomy.fits_limit else after


def _cap_to_fit(draft: Draft, group: Sequence[LogMessage]) -> Draft:
    """Applies the highest cap under which the view fits; the lowest cap if none is low enough."""
    editing = draft.start_editing()
    sizes = [editing.count_message_tokens(entry) for entry in group]
    room_tokens = sum(sizes) - (draft.tokens - draft.context.limit_tokens)
    capped = _cap_each_message(draft, group, max(MIN_MESSAGE_TOKENS, compute_equal_cap(sizes, room_tokens)))
    # Cutting is not exact (a notice and line ends take some tokens): cut once more at the lowest cap.
    return capped if capped.fits_limit else _cap_each_message(capped, group, MIN_MESSAGE_TOKENS)


def _cap_each_message(draft: Draft, group: Sequence[LogMessage], cap_tokens: int) -> Draft:
    editing = draft.start_editing()
    for entry in group:
        editing.cap_message(entry, cap_tokens)
    return editing.build_draft()
