"""Context editing: clears old tool results and old reasoning from a view that has grown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from app.context.stages.draft import Draft, DraftEditor
from app.conversation.conversation_types import LogMessage
from app.conversation.item import TOOL_RESULT_ROLES, UNNAMED_TOOL, EditOperation

CLEARED_RESULT_TEXT = "[old tool result cleared]"
RESULT_OPERATION: Final[EditOperation] = ("say", CLEARED_RESULT_TEXT)
REASONING_OPERATION: Final[EditOperation] = ("thoughtless",)


def clear_tool_results(draft: Draft) -> Draft:
    """Clears all results but the newest `keep`, if the view is above the trigger and that frees enough."""
    rule = draft.context.policy.clear_tool_results
    budget = draft.context.budget
    results = draft.list_editable_results()
    # New results are not cleared, but they count among the newest ones.
    new_count = sum(entry.message.role in TOOL_RESULT_ROLES for entry in draft.list_new_messages())
    cleared_count = sum(RESULT_OPERATION in edit.ops for edit in draft.edits.values())
    # Without a trigger the rule is off.
    is_due = rule.trigger_tokens is not None and budget.calibrate_tokens(draft.tokens) > rule.trigger_tokens
    if rule.trigger_results is not None:
        is_due = is_due or len(results) + new_count - cleared_count > rule.trigger_results
    if not is_due:
        return draft
    names = _map_tool_names(draft.context.tail.messages)
    old = results[: max(0, len(results) + min(0, new_count - rule.keep))]
    old = [entry for entry in old if names.get(entry.seq) not in rule.exclude_tools]
    editing = draft.start_editing()
    cleared = sum(editing.apply_operation_if_smaller(entry, "cleared", RESULT_OPERATION) for entry in old)
    if rule.inputs:
        _clear_call_arguments(draft, editing, {entry.seq for entry in old})
    freed = draft.tokens_above_goal - editing.tokens_above_goal
    # A small gain is not worth the prompt cache that an edit breaks.
    if not freed or budget.calibrate_tokens(freed) < rule.clear_at_least_tokens:
        return draft
    return editing.finish_stage("results_cleared", results=cleared)


def clear_reasoning(draft: Draft) -> Draft:
    """Clears the reasoning of all but the newest turns. Reasoning of the current turn is kept: providers need it with
    the calls that are still being answered.
    """
    rule, tail = draft.context.policy.clear_reasoning, draft.context.tail
    if (keep := rule.keep_turns) is None:
        return draft
    openings = tail.turn_seqs
    if rule.counts_turns_with_reasoning:
        openings = sorted(group_by_turn(openings, (one.seq for one in tail.messages if one.message.has_reasoning)))
    if len(openings) <= max(1, keep):
        return draft
    first_kept_seq = openings[-max(1, keep)]
    editing = draft.start_editing()
    old = [
        entry
        for entry in draft.iterate_editable_messages()
        if entry.seq < first_kept_seq and entry.message.has_reasoning
    ]
    cleared = sum(editing.apply_operation_if_smaller(entry, "cleared", REASONING_OPERATION) for entry in old)
    freed = draft.tokens_above_goal - editing.tokens_above_goal
    return editing.build_draft().add_note("reasoning_cleared", messages=cleared, tokens=freed) if cleared else draft


def group_by_turn(openings: Sequence[int], seqs: Iterable[int]) -> set[int]:
    """Returns where the turns begin that have some of the messages. Messages before the first turn belong to it.

    Args:
        openings: where the turns begin, ascending.
    """
    return {openings[max(0, bisect_right(openings, seq) - 1)] for seq in seqs} if openings else set()


def _map_tool_names(messages: Sequence[LogMessage]) -> dict[int, str]:
    """Returns the tool's name for each result, by id if the result has one that matches, else by its place in the
    round.
    """
    names: dict[int, str] = {}
    called: list[tuple[str | None, str]] = []
    for entry in messages:
        message = entry.message
        if message.role == "assistant":
            called = [(call.id, call.name or UNNAMED_TOOL) for call in message.calls]
        elif called and message.role in TOOL_RESULT_ROLES:
            wanted = message.result_for
            index = next((index for index, (call_id, _) in enumerate(called) if call_id == wanted), 0)
            names[entry.seq] = called.pop(index)[1]
    return names


def _clear_call_arguments(draft: Draft, editing: DraftEditor, cleared: set[int]) -> None:
    """Clears the arguments of calls whose results are all cleared, and whose tools the rule does not leave out."""
    inputs = draft.context.policy.clear_tool_results.inputs
    for entry in draft.context.tail.rounds:
        results = set(range(entry.from_seq + 1, entry.to_seq))
        call = draft.context.tail.find_message(entry.from_seq)
        is_chosen = isinstance(inputs, bool) or {one.name for one in call.message.calls} <= {*inputs}
        if results and results <= cleared and entry.from_seq >= draft.boundary_seq and is_chosen:
            editing.apply_operation_if_smaller(call, "cleared", ("inputs",))


def drop_results(draft: Draft) -> Draft:
    """Replaces results that the model has read by a notice, oldest first, until the goal is reached."""
    editing, dropped = draft.start_editing(), 0
    for entry in editing.iterate_until_goal(draft.list_editable_results()):
        text = f"[tool result of {len(entry.message.text):,} characters left out]"
        dropped += editing.apply_operation_if_smaller(entry, "cleared", ("say", text))
    return editing.finish_stage("results_dropped", results=dropped)
