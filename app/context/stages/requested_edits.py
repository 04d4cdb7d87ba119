"""Clears what a client asks to clear, before a view is planned. The planner finds these edits as those of the last
view, so every policy counts and keeps them.

Cleared messages stay cleared while the client asks for it, and more are cleared when the view passes the trigger again:
so the provider's prompt cache is used between two clearings.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.log_rounds import build_log_tail, find_first_new_seq
from app.context.plan.outline import LastView, Outline
from app.context.plan.policy import ContextPolicy
from app.context.plan.view_candidates import ViewCandidate
from app.context.stages.clear_results_and_reasoning import REASONING_OPERATION, RESULT_OPERATION, group_by_turn
from app.context.stages.shortening_planner import ShorteningPlanner
from app.context.stages.stage_registry import apply_stages
from app.context.stages.truncation_caps import CHARS_PER_TOKEN
from app.context.view.message_edits import Edit
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.context_edits import ClearedContext, ContextEdits


def may_clear_more(outline: Outline, edits: ContextEdits, budget: Budget) -> bool:
    """Says whether the log must be read to know what is to be cleared. Arithmetic on stored totals."""
    rule, tokens = edits.results, budget.calibrate_tokens(outline.instructions_tokens + outline.log_tokens)
    may_be_over = rule.trigger_tokens is not None and tokens > rule.trigger_tokens
    return may_be_over or rule.trigger_results is not None or edits.reasoning.keep_turns is not None


def clear_as_requested(
    outline: Outline, edits: ContextEdits, *, budget: Budget, policy: ContextPolicy, counter: ViewTokenCounter
) -> tuple[LastView, ClearedContext]:
    """Returns the last view with further edits, and what is cleared in it.

    Args:
        outline: with the log from the last view's boundary on, if that may change anything (`may_clear_more`).
    """
    last_view, tail = outline.last_view, build_log_tail(outline)
    known = cleared = {edit.seq: edit for edit in last_view.edits}
    if outline.tail is not None:
        rules = replace(policy, clear_tool_results=edits.results, clear_reasoning=edits.reasoning)
        known, cleared = _run_stages(ShorteningPlanner(outline, budget, rules, counter))
    changed = {seq for seq, edit in cleared.items() if known.get(seq) != edit}
    seqs = sorted(changed.union(last_view.cleared_seqs) & cleared.keys())
    chosen = [cleared[seq] for seq in seqs]
    reasoning_seqs = [one.seq for one in chosen if REASONING_OPERATION in one.ops and outline.tail is not None]
    reasoning = [tail.find_message(seq).message for seq in reasoning_seqs]
    chars = sum(len(one.raw) - len(one.edit((REASONING_OPERATION,)).raw) for one in reasoning)
    kept = tuple(edit for _, edit in sorted(cleared.items()))
    return msgspec.structs.replace(last_view, edits=kept, cleared_seqs=tuple(seqs)), ClearedContext(
        results=sum(RESULT_OPERATION in one.ops for one in chosen),
        result_tokens=budget.calibrate_tokens(sum(one.saved_tokens for one in chosen)),
        reasoning_turns=len(group_by_turn(tail.turn_seqs, reasoning_seqs)),
        reasoning_tokens=budget.calibrate_tokens(max(0, chars) // CHARS_PER_TOKEN),
    )


def drop_requested_edits(outline: Outline) -> Outline:
    """Returns the outline as it is for a request that asks for no edits."""
    last_view, cleared = outline.last_view, outline.last_view.cleared_seqs
    kept = tuple(edit for edit in last_view.edits if edit.seq not in cleared)
    return msgspec.structs.replace(outline, last_view=msgspec.structs.replace(last_view, edits=kept, cleared_seqs=()))


def _run_stages(planner: ShorteningPlanner) -> tuple[dict[int, Edit], dict[int, Edit]]:
    """Returns the edits of the last view, and those after the stages."""
    outline, boundary = planner.outline, planner.outline.last_view.boundary
    shown = tuple(one for one in outline.summaries if one.to_seq <= boundary.to_seq)
    view = ViewCandidate(shown[-1:] if planner.policy.has_replacing_summaries else shown, boundary, 0)
    draft = planner.build_draft(view)
    # Only what follows the last assistant message is new here.
    first_new_seq = find_first_new_seq(planner.log_tail, known_to_seq=outline.new_from_seq, room_tokens=-1)
    context = replace(draft.context, first_new_seq=first_new_seq)
    edited = apply_stages(replace(draft, context=context), ("clear_tool_results", "clear_reasoning"))
    return dict(draft.edits), dict(edited.edits)
