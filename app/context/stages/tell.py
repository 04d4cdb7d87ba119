"""Tell old tool rounds in a line per call, without a model."""

from __future__ import annotations

from bisect import bisect_right

from app.context.draft import Draft, Editing
from app.context.edits import Edit
from app.context.partition import Round
from app.context.rounds import told_round


def tell_old_rounds(draft: Draft) -> Draft:
    """Rounds with calls that are over `summarize_after_turns` turns old, oldest first, until the goal is reached."""
    if draft.is_at_goal:
        return draft
    tail = draft.scene.tail
    already = draft.told
    openings = [entry.from_seq for entry in tail.rounds if entry.opens_turn]
    editing, told = draft.editing(), 0
    for entry in tail.rounds:
        age_turns = len(openings) - bisect_right(openings, entry.from_seq)
        if editing.excess_tokens <= 0 or age_turns < draft.scene.policy.summarize_after_turns:
            break
        if entry.from_seq >= draft.boundary_seq and entry.from_seq not in already and _tell(draft, editing, entry):
            told += 1
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("rounds_told", rounds=told, tokens=removed) if told else draft


def _tell(draft: Draft, editing: Editing, entry: Round) -> bool:
    """Let one line per call stand for a round, where that is shorter."""
    scene = draft.scene
    logged = [scene.tail.message(seq) for seq in range(entry.from_seq, entry.to_seq)]
    first, *others = logged
    if not first.message.tool_calls or any(scene.is_pinned(each.seq) for each in logged):
        return False
    chars = scene.policy.told_result_chars
    text = told_round([each.message for each in logged], chars)
    tokens = scene.count.message({"role": "assistant", "content": text})
    if tokens >= sum(editing.tokens(each) for each in logged):
        return False
    editing.put(Edit(first.seq, "told", (("tell", len(logged), chars),), tokens, first.tokens - tokens))
    for each in others:
        editing.put(Edit(each.seq, "told", (("gone",),), 0, each.tokens))
    return True
