"""Tell old tool rounds in a line per call, without a model."""

from __future__ import annotations

from bisect import bisect_left

from app.context.plan.log_cuts import Round
from app.context.stages.draft import Draft, Editing
from app.context.stages.round_lines import told_round
from app.context.view.message_edits import Edit


def tell_old_rounds(draft: Draft) -> Draft:
    """Rounds with calls that are over `summarize_after_turns` turns old, oldest first, until the goal is reached."""
    if draft.is_at_goal:
        return draft
    rounds = draft.scene.tail.rounds
    fixed = draft.told | draft.scene.pinned
    editing, told = draft.editing(), 0
    first = bisect_left(rounds, draft.boundary_seq, key=_from_seq)
    for entry in rounds[first : bisect_left(rounds, _young_seq(draft), key=_from_seq)]:
        if editing.excess_tokens <= 0:
            break
        if draft.scene.tail.message(entry.from_seq).message.tool_calls and fixed.isdisjoint(_seqs(entry)):
            told += _tell(draft, editing, entry)
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("rounds_told", rounds=told, tokens=removed) if told else draft


def _young_seq(draft: Draft) -> int:
    """Where the turns begin that are not old enough."""
    tail, young = draft.scene.tail, draft.scene.policy.summarize_after_turns
    openings = [entry.from_seq for entry in tail.rounds if entry.opens_turn]
    if not young:
        return tail.end_seq
    return openings[-young] if len(openings) >= young else tail.start_seq


def _from_seq(entry: Round) -> int:
    return entry.from_seq


def _seqs(entry: Round) -> range:
    return range(entry.from_seq, entry.to_seq)


def _tell(draft: Draft, editing: Editing, entry: Round) -> bool:
    """Let one line per call stand for a round, where that is shorter."""
    scene = draft.scene
    logged = [scene.tail.message(seq) for seq in _seqs(entry)]
    first, *others = logged
    chars = scene.policy.told_result_chars
    text = told_round([each.message for each in logged], chars)
    tokens = scene.count.message({"role": "assistant", "content": text})
    if tokens >= sum(editing.tokens(each) for each in logged):
        return False
    editing.put(Edit(first.seq, "told", (("tell", len(logged), chars),), tokens, first.tokens - tokens))
    for each in others:
        editing.put(Edit(each.seq, "told", (("gone",),), 0, each.tokens))
    return True
