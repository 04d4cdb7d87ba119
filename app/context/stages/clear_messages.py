"""Context editing: clear old tool results, and old reasoning, from a view that has grown."""

from __future__ import annotations

from collections.abc import Sequence

from app.context.stages.draft import Draft, Editing
from app.context.stages.round_lines import call_of, id_of
from app.context.view.message_edits import REASONING_FIELDS, is_reasoning
from app.conversation.messages import LogMessage

CLEARED = "[old tool result cleared]"


def clear_tool_results(draft: Draft) -> Draft:
    """All but the newest `keep` results, once the view is above the trigger and if that frees enough."""
    rule = draft.scene.policy.clear_tool_results
    budget = draft.scene.budget
    if rule.trigger_tokens is None or budget.calibrated(draft.tokens) <= rule.trigger_tokens:
        return draft
    names = _tool_names(draft.scene.tail.messages)
    results = draft.results()
    old = results[: max(0, len(results) - rule.keep)]
    old = [entry for entry in old if names.get(entry.seq) not in rule.exclude_tools]
    editing = draft.editing()
    cleared = sum(editing.op(entry, "cleared", ("say", CLEARED)) for entry in old)
    if rule.inputs:
        _clear_inputs(draft, editing, {entry.seq for entry in old})
    freed = draft.excess_tokens - editing.excess_tokens
    if not freed or budget.calibrated(freed) < rule.clear_at_least_tokens:
        return draft
    return editing.draft().noted("results_cleared", results=cleared, tokens=freed)


def clear_reasoning(draft: Draft) -> Draft:
    """Reasoning of all but the newest turns. What belongs to a call that is still being answered is never touched."""
    keep = draft.scene.policy.clear_reasoning.keep_turns
    if keep is None:
        return draft
    openings = [entry.from_seq for entry in draft.scene.tail.rounds if entry.opens_turn]
    if len(openings) <= max(1, keep):
        return draft
    first_kept_seq = openings[-max(1, keep)]
    editing = draft.editing()
    old = [entry for entry in draft.shown() if entry.seq < first_kept_seq and _has_reasoning(entry)]
    cleared = sum(editing.op(entry, "cleared", ("thoughtless",)) for entry in old)
    freed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("reasoning_cleared", messages=cleared, tokens=freed) if cleared else draft


def _has_reasoning(entry: LogMessage) -> bool:
    body = entry.message.body
    content = body.get("content")
    return any(body.get(name) for name in REASONING_FIELDS) or (
        isinstance(content, list) and any(is_reasoning(part) for part in content)
    )


def _tool_names(messages: Sequence[LogMessage]) -> dict[int, str]:
    """The tool that each result is of, by its place among the calls of the round; by id where that is told."""
    names: dict[int, str] = {}
    called: list[tuple[object, str]] = []
    for entry in messages:
        message = entry.message
        if message.role == "assistant":
            called = [(id_of(call), call_of(call)[0]) for call in message.tool_calls]
        elif called and message.role in {"tool", "function"}:
            wanted = message.body.get("tool_call_id")
            at = next((at for at, (call_id, _) in enumerate(called) if call_id == wanted), 0)
            names[entry.seq] = called.pop(at)[1]
    return names


def _clear_inputs(draft: Draft, editing: Editing, cleared: set[int]) -> None:
    """Clear the arguments of calls whose results are all cleared."""
    for entry in draft.scene.tail.rounds:
        results = set(range(entry.from_seq + 1, entry.to_seq))
        call = draft.scene.tail.message(entry.from_seq)
        if results and results <= cleared and entry.from_seq >= draft.boundary_seq:
            editing.op(call, "cleared", ("inputs",))


def drop_results(draft: Draft) -> Draft:
    """Results, oldest first, until the goal is reached; those of the newest round only if nothing else fits."""
    if draft.is_at_goal:
        return draft
    rounds = draft.scene.tail.rounds
    newest_seq = rounds[-1].from_seq if rounds else 0
    editing, dropped = draft.editing(), 0
    slack_tokens = draft.scene.limit_tokens - draft.scene.goal_tokens
    for entry in draft.results():
        if editing.excess_tokens <= (slack_tokens if entry.seq >= newest_seq else 0):
            break
        text = f"[tool result of {len(entry.message.text):,} characters left out]"
        dropped += editing.op(entry, "cleared", ("say", text))
    removed = draft.excess_tokens - editing.excess_tokens
    return editing.draft().noted("results_dropped", results=dropped, tokens=removed) if dropped else draft
