"""Condenses old tool rounds to one line per call, without a model."""

from __future__ import annotations

from bisect import bisect_left

from app.context.plan.log_rounds import Round, find_round_start
from app.context.stages.draft import Draft, DraftEditor
from app.context.stages.tool_round_text import render_tool_round
from app.context.view.message_edits import Edit
from app.dialects.body.message import ChatMessage


def tell_old_rounds(draft: Draft) -> Draft:
    """Condenses rounds with calls that are older than `summarize_after_turns` turns, oldest first, until the goal is
    reached.
    """
    rounds = draft.context.tail.rounds
    fixed = draft.condensed_seqs | draft.context.pinned_seqs
    editing, condensed_count = draft.start_editing(), 0
    first = bisect_left(rounds, draft.boundary_seq, key=_read_round_start)
    past = bisect_left(rounds, _find_first_young_seq(draft), key=_read_round_start)
    for entry in editing.iterate_until_goal(rounds[first:past]):
        if draft.context.tail.find_message(entry.from_seq).message.calls_tools and fixed.isdisjoint(
            _list_round_seqs(entry)
        ):
            condensed_count += _condense_round(draft, editing, entry)
    return editing.finish_stage("rounds_told", rounds=condensed_count)


def _find_first_young_seq(draft: Draft) -> int:
    """Returns where the turns begin that are not old enough."""
    tail, young = draft.context.tail, draft.context.policy.summarize_after_turns
    first_young_seq = tail.turn_seqs[-young] if len(tail.turn_seqs) >= young else tail.start_seq
    # A round with a new result is not condensed.
    return min(first_young_seq if young else tail.end_seq, find_round_start(tail, draft.context.first_new_seq))


def _read_round_start(entry: Round) -> int:
    return entry.from_seq


def _list_round_seqs(entry: Round) -> range:
    return range(entry.from_seq, entry.to_seq)


def _condense_round(draft: Draft, editing: DraftEditor, entry: Round) -> bool:
    """Replaces a round by one line per call, if that is shorter."""
    scene = draft.context
    logged = [scene.tail.find_message(seq) for seq in _list_round_seqs(entry)]
    first, *others = logged
    chars = scene.policy.trimming.told_result_chars
    text = render_tool_round([each.message for each in logged], chars)
    tokens = scene.counter.count_message(ChatMessage.from_text("assistant", text))
    if tokens >= sum(editing.count_message_tokens(each) for each in logged):
        return False
    editing.put_edit(Edit(first.seq, "told", (("tell", len(logged), chars),), tokens, first.tokens - tokens))
    # The first message of the round shows the text; the others show nothing.
    for each in others:
        editing.put_edit(Edit(each.seq, "told", (("gone",),), 0, each.tokens))
    return True
