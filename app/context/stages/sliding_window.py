"""A sliding window: keeps the last turns, or the last tokens, and moves on in steps."""

from __future__ import annotations

from math import ceil

from app.context.stages.draft import Draft


def keep_last(draft: Draft) -> Draft:
    """Cuts the draft to `target_ratio` of `keep_turns` turns or `keep_tokens` tokens once it has more than that."""
    policy = draft.context.policy
    openings = [
        entry.from_seq
        for entry in draft.context.tail.rounds
        if entry.opens_turn and entry.from_seq >= draft.boundary_seq
    ]
    if policy.keep_turns is not None and len(openings) > policy.keep_turns:
        draft = _cut_draft(draft, openings[-_compute_turns_after_cut(policy.keep_turns, policy.target_ratio)])
    allowed = policy.keep_tokens
    if allowed is not None and draft.context.budget.calibrate_tokens(draft.message_tokens) > allowed:
        goal = draft.context.budget.compute_raw_tokens(int(allowed * policy.target_ratio))
        later = [seq for seq in openings if seq > draft.boundary_seq]
        fitting = (seq for seq in later if draft.context.tail.count_tokens_from(seq) <= goal)
        seq = next(fitting, later[-1] if later else None)
        draft = draft if seq is None else _cut_draft(draft, seq)
    return draft


def _compute_turns_after_cut(keep_turns: int, target_ratio: float) -> int:
    """Returns how many turns a cut leaves. If three or more may stay, a cut leaves fewer, so that not each
    turn cuts.
    """
    left = ceil(keep_turns * target_ratio)
    return max(1, min(left, keep_turns - 1) if keep_turns > 2 else left)


def _cut_draft(draft: Draft, seq: int) -> Draft:
    cut = draft.cut_before(seq)
    return cut.add_note("dropped", messages=cut.dropped_message_count, from_seq=seq, tokens=draft.tokens - cut.tokens)
