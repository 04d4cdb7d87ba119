"""Leave out whole rounds, oldest first, in steps: what is cut stays cut for many turns.

The amount is a multiple of a quarter of the limit, moved on to the beginning of a turn, and depends on cumulative token
totals only: between two steps each view begins with the bytes of the one before, and prompt caches keep working.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import msgspec

from app.context.plan.log_cuts import Round
from app.context.stages.age_weights import CHARS_PER_TOKEN
from app.context.stages.draft import Draft
from app.context.stages.mask_results import mask_more


def drop_oldest(draft: Draft) -> Draft:
    """Cut to about the goal, at most to the newest round; the newest user message stays as the anchor.

    Results are masked more before anything is dropped. Where that is enough, the first task stays; once that is gone,
    what fits is cut, too, if it is half a step or more above the goal: it would be over the limit again soon.
    """
    if not draft.fits:
        draft = mask_more(draft)
    rounds = [entry for entry in draft.scene.tail.rounds if entry.from_seq >= draft.boundary_seq]
    steps = round(draft.excess_tokens / _step_tokens(draft))
    if len(rounds) < 2 or (draft.fits and (steps < 1 or not draft.boundary_seq)):
        return draft
    cut = _cut(draft, rounds, max(1, steps))
    if cut.tokens >= draft.tokens:
        return draft
    return cut.noted("dropped", messages=cut.dropped, from_seq=cut.boundary_seq, tokens=draft.tokens - cut.tokens)


def drop_all_but_the_request(draft: Draft) -> Draft:
    """Keep the newest user message alone; without one, there is nothing that could stand for the request."""
    tail = draft.scene.tail
    newest = tail.newest_user
    if newest is None or newest.seq == draft.boundary_seq == tail.end_seq - 1:
        return draft
    end = msgspec.structs.replace(tail.boundary(tail.end_seq), anchor_seq=newest.seq, anchor_tokens=newest.tokens)
    bare = replace(draft, boundary=end, edits={})
    return bare.noted("only_the_request_kept", messages=bare.dropped)


def _cut(draft: Draft, rounds: list[Round], steps: int) -> Draft:
    """The cut after so many steps, or the first after that which makes the view fit; the newest round's start if none
    does."""
    dropped_before = list(accumulate((entry.tokens for entry in rounds[:-1]), initial=0))
    step_tokens = _step_tokens(draft)
    while (place := bisect_left(dropped_before, steps * step_tokens)) < len(rounds) - 1:
        next_place = bisect_left(dropped_before, (steps + 1) * step_tokens)
        opening = next((at for at in range(place, min(next_place, len(rounds))) if rounds[at].opens_turn), place)
        cut = draft.cut_at(rounds[opening].from_seq)
        if cut.fits:
            return cut
        steps += 1
    return draft.cut_at(rounds[-1].from_seq)


def _step_tokens(draft: Draft) -> int:
    return max(1, int(draft.scene.limit_tokens * draft.scene.policy.step_ratio))


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


SUMMARIES_SHARE = 0.5
"""Summaries may take this share of what instructions leave; beyond it the oldest go first."""


def forget_oldest_summaries(draft: Draft) -> Draft:
    """Keep the newest summaries within their share. Depends on nothing that grows with the log."""
    allowed = int((draft.scene.limit_tokens - draft.scene.instructions_tokens) * SUMMARIES_SHARE)
    return _keep_newest_within(draft, allowed)


def forget_all_summaries(draft: Draft) -> Draft:
    return _keep_newest_within(draft, 0)


def _keep_newest_within(draft: Draft, allowed_tokens: int) -> Draft:
    kept, tokens = len(draft.chunks), 0
    while kept and tokens + draft.chunks[kept - 1].tokens <= allowed_tokens:
        kept -= 1
        tokens += draft.chunks[kept].tokens
    if not kept:
        return draft
    return replace(draft, chunks=draft.chunks[kept:]).noted("summaries_left_out", count=kept, kept_tokens=tokens)
