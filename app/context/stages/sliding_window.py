"""A sliding window: keeps the last turns, or the last tokens, and moves on in steps."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from app.context.stages.draft import Draft


def keep_last(draft: Draft) -> Draft:
    """Cuts the draft to `target_ratio` of `keep_turns` turns or `keep_tokens` tokens once it has more than that. The
    tokens include pins and the notice for dropped messages. The newest turn always stays.
    """
    policy = draft.context.policy
    openings = [seq for seq in draft.context.tail.turn_seqs if seq >= draft.boundary_seq]
    if policy.verbatim.keep_turns is not None and len(openings) > policy.verbatim.keep_turns:
        draft = _cut_draft(
            draft, openings[-_compute_turns_after_cut(policy.verbatim.keep_turns, policy.cut.target_ratio)]
        )
    allowed = policy.verbatim.keep_tokens
    if allowed is not None and draft.context.budget.calibrate_tokens(draft.message_tokens) > allowed:
        goal = draft.context.budget.compute_raw_tokens(int(allowed * policy.cut.target_ratio))
        later = [seq for seq in openings if seq > draft.boundary_seq]
        # The goal includes pins and the notice, as `keep_tokens` does. Otherwise the cut could leave more than
        # `keep_tokens`, and the next plan would cut again.
        index = bisect_left(later, True, key=lambda seq: draft.cut_before(seq).message_tokens <= goal)
        draft = _cut_draft(draft, later[min(index, len(later) - 1)]) if later else draft
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
