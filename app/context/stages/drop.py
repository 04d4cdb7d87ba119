"""Leave out whole rounds, oldest first, in steps: what is cut stays cut for many turns.

The amount is a multiple of a quarter of the limit, moved on to the beginning of a turn, and depends on cumulative token
totals only: between two steps each view begins with the bytes of the one before, and prompt caches keep working.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import msgspec

from app.context.draft import Draft
from app.context.partition import Round


def drop_oldest(draft: Draft) -> Draft:
    """Cut so far that the view fits, at most to the newest round; the newest user message stays as the anchor."""
    rounds = [entry for entry in draft.scene.tail.rounds if entry.from_seq >= draft.boundary_seq]
    if draft.fits or len(rounds) < 2:
        return draft
    cut = _cut(draft, rounds)
    if cut.tokens >= draft.tokens:
        return draft
    return cut.noted("dropped", messages=cut.dropped, from_seq=cut.boundary_seq, tokens=draft.tokens - cut.tokens)


def drop_all_but_the_request(draft: Draft) -> Draft:
    """Keep the newest user message alone; without one, there is nothing that could stand for the request."""
    tail = draft.scene.tail
    newest = tail.newest_user
    if newest is None or newest.seq == draft.boundary_seq == tail.end_seq - 1:
        return draft
    end = msgspec.structs.replace(
        tail.boundary(tail.end_seq), anchor_seq=newest.seq, anchor_tokens=newest.tokens
    )
    bare = replace(draft, boundary=end, edits={})
    return bare.noted("only_the_request_kept", messages=bare.dropped)


def _cut(draft: Draft, rounds: list[Round]) -> Draft:
    """The cut after the number of steps that comes nearest to the goal, or the first after that which makes the view
    fit; the newest round's start if none does."""
    scene = draft.scene
    sizes = (scene.tail.tokens_from(entry.from_seq) - scene.tail.tokens_from(entry.to_seq) for entry in rounds[:-1])
    dropped_before = list(accumulate(sizes, initial=0))
    step_tokens = max(1, int(scene.limit_tokens * scene.policy.step_ratio))
    steps = max(1, round(draft.excess_tokens / step_tokens))
    while (place := bisect_left(dropped_before, steps * step_tokens)) < len(rounds) - 1:
        next_place = bisect_left(dropped_before, (steps + 1) * step_tokens)
        opening = next((at for at in range(place, min(next_place, len(rounds))) if rounds[at].opens_turn), place)
        cut = draft.cut_at(rounds[opening].from_seq)
        if cut.fits:
            return cut
        steps += 1
    return draft.cut_at(rounds[-1].from_seq)
