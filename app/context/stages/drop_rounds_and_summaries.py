"""Leaves out whole rounds, oldest first, in steps: what is cut stays cut for many turns.

The amount is a multiple of `step_ratio` of the limit, moved on to the beginning of a turn, and depends on cumulative
token totals only. Between two steps each view begins with the bytes of the one before, so the provider's prompt cache
is used.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import msgspec

from app.context.plan.log_rounds import Round
from app.context.stages.draft import Draft
from app.context.stages.mask_results import mask_results_further
from app.context.stages.truncation_caps import CHARS_PER_TOKEN
from app.conversation.item import TOOL_RESULT_ROLES


def drop_oldest(draft: Draft) -> Draft:
    """Cuts the oldest rounds until about the goal, at most up to the newest round; the newest user message stays as the
    anchor.

    Results are masked further before anything is dropped. If that is enough, the log's beginning stays. If the
    beginning is gone already, a view that fits is cut, too, if it is half a step or more above the goal: it would soon
    be over the limit again.
    """
    if not draft.fits_limit:
        draft = mask_results_further(draft)
    rounds = [entry for entry in draft.context.tail.rounds if entry.from_seq >= draft.boundary_seq]
    steps = round(draft.tokens_above_goal / _compute_cut_step_tokens(draft))
    if len(rounds) < 2 or (draft.fits_limit and (steps < 1 or not draft.boundary_seq)):
        return draft
    cut = _cut_after_steps(draft, rounds, max(1, steps))
    # The notice for dropped messages, or the anchor, may take more than the cut frees.
    if cut.tokens >= draft.tokens:
        return draft
    return cut.add_note(
        "dropped", messages=cut.dropped_message_count, from_seq=cut.boundary_seq, tokens=draft.tokens - cut.tokens
    )


def drop_all_but_newest_user_message(draft: Draft) -> Draft:
    """Keeps the newest user message, and the tool round after it that the model has not read: without its results, an
    agent would make the same calls again, for ever. Without a user message nothing is dropped: nothing else could stand
    for the request.
    """
    tail = draft.context.tail
    newest = tail.newest_user_message
    if newest is None or newest.seq == draft.boundary_seq == tail.end_seq - 1:
        return draft
    if tail.messages and tail.messages[-1].message.role in TOOL_RESULT_ROLES:
        return draft.cut_before(max(draft.boundary_seq, tail.rounds[-1].from_seq))
    # The request is shown as the anchor of an empty verbatim part.
    end = msgspec.structs.replace(tail.build_boundary(tail.end_seq), anchor_seq=newest.seq, anchor_tokens=newest.tokens)
    bare = replace(draft, boundary=end, edits={})
    return bare.add_note("only_the_request_kept", messages=bare.dropped_message_count)


def _cut_after_steps(draft: Draft, rounds: list[Round], steps: int) -> Draft:
    """Returns the draft cut after `steps` steps, or after the first larger number of steps that makes it fit; cut to
    the newest round if none does.
    """
    dropped_before = list(accumulate((entry.tokens for entry in rounds[:-1]), initial=0))
    step_tokens = _compute_cut_step_tokens(draft)
    while (cut_index := bisect_left(dropped_before, steps * step_tokens)) < len(rounds) - 1:
        next_cut_index = bisect_left(dropped_before, (steps + 1) * step_tokens)
        # A cut at the beginning of a turn needs no anchor. The next turn within one step is near enough.
        opening = next(
            (index for index in range(cut_index, min(next_cut_index, len(rounds))) if rounds[index].opens_turn),
            cut_index,
        )
        cut = draft.cut_before(rounds[opening].from_seq)
        if cut.fits_limit:
            return cut
        steps += 1
    return draft.cut_before(rounds[-1].from_seq)


def _compute_cut_step_tokens(draft: Draft) -> int:
    return max(1, int(draft.context.limit_tokens * draft.context.policy.cut.step_ratio))


def share_evenly(draft: Draft) -> Draft:
    """Cuts each message but the newest user message to an even share, at least `emergency_chars`; then drops the oldest
    rounds if that is not enough.
    """
    if draft.fits_limit:
        return draft
    scene = draft.context
    shown = draft.list_editable_but_request()
    if not shown:
        return draft
    editing = draft.start_editing()
    fixed_tokens = draft.tokens - sum(editing.count_message_tokens(entry) for entry in shown)
    room_chars = max(0, scene.limit_tokens - fixed_tokens) * CHARS_PER_TOKEN
    chars = max(scene.policy.trimming.emergency_chars, room_chars // len(shown))
    for entry in shown:
        if len(editing.read_message_text(entry)) > chars:
            editing.apply_operation_if_smaller(entry, "truncated", ("contents", chars))
        if len(entry.message.raw) > chars and entry.message.calls_tools:
            editing.apply_operation_if_smaller(entry, "truncated", ("arguments", chars))
    removed = draft.tokens_above_goal - editing.tokens_above_goal
    shared = editing.build_draft().add_note("shared_evenly", chars=chars, tokens=removed)
    return shared if shared.fits_limit else drop_oldest(shared)


MIN_SUMMARIES_SHARE, MAX_SUMMARIES_SHARE = 0.25, 0.5
"""The shares of the limit without instructions that summaries may take: the smaller one even if messages are left out
for them, the larger one if the messages after them then fit."""


def drop_oldest_summaries(draft: Draft) -> Draft:
    """Leaves out the oldest summaries above their share."""
    room_tokens = draft.context.limit_tokens - draft.context.outline.instructions_tokens
    sizes = [summary.tokens for summary in draft.summaries]
    count = 0
    while count < len(sizes):
        left = sum(sizes[count:])
        shorter = replace(draft, summaries=draft.summaries[count:])
        if left <= room_tokens * MIN_SUMMARIES_SHARE or (
            left <= room_tokens * MAX_SUMMARIES_SHARE and shorter.fits_limit
        ):
            break
        count += 1
    return _leave_out_summaries(draft, count)


def drop_all_summaries(draft: Draft) -> Draft:
    return _leave_out_summaries(draft, len(draft.summaries))


def _leave_out_summaries(draft: Draft, count: int) -> Draft:
    if not count:
        return draft
    kept = draft.summaries[count:]
    return replace(draft, summaries=kept).add_note(
        "summaries_left_out", count=count, kept_tokens=sum(summary.tokens for summary in kept)
    )
