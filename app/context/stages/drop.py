"""Leave out whole rounds, oldest first, in steps: what is cut stays cut for many turns.

The amount is a multiple of a quarter of the limit, moved on to the beginning of a turn, and depends on cumulative token
totals only: between two steps each view begins with the bytes of the one before, and prompt caches keep working.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from app.context.draft import Draft

STEPS_PER_LIMIT = 4


def drop_oldest_rounds(draft: Draft) -> Draft:
    """Cut so far that the view fits, at most to the newest round; the newest user message stays as the anchor."""
    if len(draft.scene.tail.rounds) < 2:
        return draft
    last_cut = _last_cut(draft)
    cut = last_cut if last_cut is not None else _next_cut(draft)
    return cut.noted("dropped", messages=cut.dropped, from_seq=cut.boundary_seq, tokens=draft.tokens - cut.tokens)


def drop_all_but_the_request(draft: Draft) -> Draft:
    """Keep the newest user message alone; without one, there is nothing that could stand for the request."""
    tail = draft.scene.tail
    newest = tail.newest_user
    if newest is None or newest.seq == draft.boundary_seq == tail.end_seq - 1:
        return draft
    bare = replace(draft, boundary_seq=tail.end_seq, anchor=newest, replaced={})
    return bare.noted("only_the_request_kept", messages=bare.dropped)


def _last_cut(draft: Draft) -> Draft | None:
    """The cut of the last view, while it still fits and leaves no room for much more."""
    scene = draft.scene
    seq = scene.last_boundary_seq
    if seq <= draft.boundary_seq or all(entry.from_seq != seq for entry in scene.tail.rounds):
        return None
    cut = draft.cut_at(seq)
    return cut if cut.fits and cut.tokens >= scene.regrow_tokens else None


def _next_cut(draft: Draft) -> Draft:
    """The first cut after a whole number of steps that makes the view fit; the newest round's start if none does."""
    rounds = draft.scene.tail.rounds
    dropped_before = list(accumulate((entry.tokens for entry in rounds[:-1]), initial=0))
    step_tokens = max(1, draft.scene.limit_tokens // STEPS_PER_LIMIT)
    steps = -(-draft.excess_tokens // step_tokens)
    while (place := bisect_left(dropped_before, steps * step_tokens)) < len(rounds) - 1:
        next_place = bisect_left(dropped_before, (steps + 1) * step_tokens)
        opening = next((at for at in range(place, min(next_place, len(rounds))) if rounds[at].opens_turn), place)
        cut = draft.cut_at(rounds[opening].from_seq)
        if cut.fits:
            return cut
        steps += 1
    return draft.cut_at(rounds[-1].from_seq)
