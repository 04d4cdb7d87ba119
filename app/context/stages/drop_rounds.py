"""Leave out whole rounds, oldest first, in steps: what is cut stays cut for many turns.

The amount is a multiple of a quarter of the limit, moved on to the beginning of a turn, and depends on cumulative token
totals only: between two steps each view begins with the bytes of the one before, and prompt caches keep working.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import msgspec

from app.context.plan.log_rounds import Round
from app.context.stages.age_weights import CHARS_PER_TOKEN
from app.context.stages.draft import Draft
from app.context.stages.mask_results import mask_results_further


def drop_oldest(draft: Draft) -> Draft:
    """Cut to about the goal, at most to the newest round; the newest user message stays as the anchor.

    Results are masked more before anything is dropped. Where that is enough, the first task stays; once that is gone,
    what fits is cut, too, if it is half a step or more above the goal: it would be over the limit again soon.
    """
    if not draft.fits_limit:
        draft = mask_results_further(draft)
    rounds = [entry for entry in draft.context.tail.rounds if entry.from_seq >= draft.boundary_seq]
    steps = round(draft.excess_tokens / _compute_step_tokens(draft))
    if len(rounds) < 2 or (draft.fits_limit and (steps < 1 or not draft.boundary_seq)):
        return draft
    cut = _cut_after_steps(draft, rounds, max(1, steps))
    if cut.tokens >= draft.tokens:
        return draft
    return cut.add_note(
        "dropped", messages=cut.dropped_message_count, from_seq=cut.boundary_seq, tokens=draft.tokens - cut.tokens
    )


def drop_all_but_newest_user_message(draft: Draft) -> Draft:
    """Keep the newest user message alone; without one, there is nothing that could stand for the request."""
    tail = draft.context.tail
    newest = tail.newest_user_message
    if newest is None or newest.seq == draft.boundary_seq == tail.end_seq - 1:
        return draft
    end = msgspec.structs.replace(tail.build_boundary(tail.end_seq), anchor_seq=newest.seq, anchor_tokens=newest.tokens)
    bare = replace(draft, boundary=end, edits={})
    return bare.add_note("only_the_request_kept", messages=bare.dropped_message_count)


def _cut_after_steps(draft: Draft, rounds: list[Round], steps: int) -> Draft:
    """The cut after so many steps, or the first after that which makes the view fit; the newest round's start if none
    does."""
    dropped_before = list(accumulate((entry.tokens for entry in rounds[:-1]), initial=0))
    step_tokens = _compute_step_tokens(draft)
    while (place := bisect_left(dropped_before, steps * step_tokens)) < len(rounds) - 1:
        next_place = bisect_left(dropped_before, (steps + 1) * step_tokens)
        opening = next((at for at in range(place, min(next_place, len(rounds))) if rounds[at].opens_turn), place)
        cut = draft.cut_before(rounds[opening].from_seq)
        if cut.fits_limit:
            return cut
        steps += 1
    return draft.cut_before(rounds[-1].from_seq)


def _compute_step_tokens(draft: Draft) -> int:
    return max(1, int(draft.context.limit_tokens * draft.context.policy.step_ratio))


def share_evenly(draft: Draft) -> Draft:
    """Each message but the newest user's keeps an even share, at least `emergency_chars`; then the oldest go."""
    if draft.fits_limit:
        return draft
    scene = draft.context
    request = scene.tail.newest_user_message
    shown = [entry for entry in draft.iterate_editable_messages() if request is None or entry.seq != request.seq]
    if not shown:
        return draft
    editing = draft.start_editing()
    fixed_tokens = draft.tokens - sum(editing.count_message_tokens(entry) for entry in shown)
    room_chars = max(0, scene.limit_tokens - fixed_tokens) * CHARS_PER_TOKEN
    chars = max(scene.policy.emergency_chars, room_chars // len(shown))
    for entry in shown:
        if len(editing.read_message_text(entry)) > chars:
            editing.apply_operation(entry, "truncated", ("contents", chars))
        if len(entry.message.raw) > chars and entry.message.tool_calls:
            editing.apply_operation(entry, "truncated", ("arguments", chars))
    removed = draft.excess_tokens - editing.excess_tokens
    shared = editing.build_draft().add_note("shared_evenly", chars=chars, tokens=removed)
    return shared if shared.fits_limit else drop_oldest(shared)


MAX_SUMMARIES_SHARE = 0.5
"""Summaries may take this share of what instructions leave; beyond it the oldest go first."""


def drop_oldest_summaries(draft: Draft) -> Draft:
    """Keep the newest summaries within their share. Depends on nothing that grows with the log."""
    allowed = int((draft.context.limit_tokens - draft.context.instructions_tokens) * MAX_SUMMARIES_SHARE)
    return _keep_newest_summaries(draft, allowed)


def drop_all_summaries(draft: Draft) -> Draft:
    return _keep_newest_summaries(draft, 0)


def _keep_newest_summaries(draft: Draft, allowed_tokens: int) -> Draft:
    kept, tokens = len(draft.summaries), 0
    while kept and tokens + draft.summaries[kept - 1].tokens <= allowed_tokens:
        kept -= 1
        tokens += draft.summaries[kept].tokens
    if not kept:
        return draft
    return replace(draft, summaries=draft.summaries[kept:]).add_note(
        "summaries_left_out", count=kept, kept_tokens=tokens
    )
