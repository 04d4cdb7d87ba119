"""A view that is being shortened: the input and output of a stage. Tokens are raw counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from app.context.plan.budget import Budget
from app.context.plan.log_rounds import NO_NEW_MESSAGE, LogTail, find_round_start
from app.context.plan.outline import Boundary, Outline, Pin, PlanNote
from app.context.plan.policy import ContextPolicy
from app.context.user_text.user_text import UserLine, find_user_text
from app.context.view.message_edits import Edit, EditKind, add_edit_operation
from app.context.view.view_rendering import ViewTokenCounter, count_summary_message_tokens
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES, EditOperation, Item

Entry = TypeVar("Entry")
UNCOUNTED_OPERATIONS = frozenset({"thoughtless"})
"""They remove what is not counted as tokens of the prompt, or not by every provider. They need not make a message
smaller."""
CONTENT_CUT_OPERATIONS = frozenset({"shorten", "contents"})
"""They cut the content. A result has nothing else to cut, so a later one replaces the earlier one and cuts the whole
result."""

FIRST_ATTEMPT_FACTOR = 0.95
"""The first attempt aims at this share of the cap: text is not equally dense everywhere, and the notice takes some
tokens."""
MAX_ATTEMPTS = 16
GOOD_FILL_SHARE = 0.95
"""A message that fills this share of its cap is good enough."""
SUFFICIENT_ATTEMPTS = 3
"""After this many attempts any message within its cap is good enough."""
SAFETY_FACTOR = 0.985
"""Each further attempt aims at this share of the cap."""
MAX_GROWTH_FACTOR = 1.5
"""The share grows at most by this factor from one attempt to the next: some texts do not get longer with it."""
SHRINK_FACTOR = 0.7
"""The share of the text is multiplied by this if an attempt is still too long."""


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What all stages share and none changes."""

    outline: Outline
    tail: LogTail
    budget: Budget
    policy: ContextPolicy
    counter: ViewTokenCounter
    goal_ratio: float = 1.0
    """What a stage should leave, as a share of the limit."""
    first_new_seq: int = NO_NEW_MESSAGE
    """From this message on the model has answered nothing yet. No stage drops these messages, and none cuts them while
    they fit beside the shortest form of the rest."""
    new_excess_tokens: int = 0
    """How much longer they are than that; 0 if they fit."""

    @property
    def limit_tokens(self) -> int:
        """Returns the most tokens that the view may take."""
        return self.budget.compute_raw_tokens(self.budget.limit)

    @property
    def goal_tokens(self) -> int:
        return int(self.limit_tokens * self.goal_ratio)

    @property
    def message_window_tokens(self) -> int:
        """Returns the window without reserve and instructions."""
        window_tokens = self.budget.compute_raw_tokens(self.budget.window_without_reserve)
        return max(0, window_tokens - self.outline.instructions_tokens)

    @property
    def pinned_seqs(self) -> set[int]:
        """Returns the pinned messages."""
        return {seq for pin in self.outline.pins for seq in range(pin.from_seq, pin.to_seq)}


@dataclass(frozen=True)
class Draft:
    """A view that is being made: summaries, pins, the anchor, and the log from the boundary on, some of it edited."""

    context: DraftContext
    summaries: tuple[Summary, ...]
    boundary: Boundary
    edits: Mapping[int, Edit] = field(default_factory=dict)
    notes: tuple[PlanNote, ...] = ()

    @property
    def boundary_seq(self) -> int:
        return self.boundary.to_seq

    @property
    def dropped_message_count(self) -> int:
        """Returns how many messages are neither shown nor summarized, without those that the client leaves out."""
        tail = self.context.tail
        forgotten_to = self.summaries[0].from_seq if self.summaries else tail.start_seq
        # Messages are missing in two places: before the first summary that is left, and between the last one and the
        # boundary.
        gaps = ((0, forgotten_to), (tail.start_seq, self.boundary_seq))
        missing = sum(to_seq - from_seq for from_seq, to_seq in gaps)
        omitted = self.context.outline.omitted_seqs
        missing -= sum(from_seq <= seq < to_seq for seq in omitted for from_seq, to_seq in gaps)
        shown = [(pin.from_seq, pin.to_seq) for pin in self.pins]
        if (anchor := self.boundary.anchor_seq) is not None and all(anchor != pin.from_seq for pin in self.pins):
            shown.append((anchor, anchor + 1))
        shown = [one for one in shown if one[0] not in omitted]
        for from_seq, to_seq in shown:
            missing -= sum(max(0, min(to_seq, end) - max(from_seq, start)) for start, end in gaps)
        return missing

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Returns the pins from before the boundary. The others are in the verbatim part."""
        return select_pins_before(self.boundary, self.context.outline.pins)

    @property
    def user_text(self) -> tuple[UserLine, ...]:
        """Returns the user text that the view shows."""
        return select_user_text(self.boundary, self.context.outline)

    @cached_property
    def tokens(self) -> int:
        return self.context.outline.instructions_tokens + self.summary_tokens + self.verbatim_tokens

    @property
    def message_tokens(self) -> int:
        return self.tokens - self.context.outline.instructions_tokens

    @property
    def summary_tokens(self) -> int:
        return count_summary_message_tokens(self.summaries, self.dropped_message_count, self.context.counter)

    @property
    def verbatim_tokens(self) -> int:
        """Returns the tokens of user text, pins, anchor, and the log from the boundary on."""
        shown = self.context.tail.count_tokens_from(self.boundary_seq)
        shown += count_tokens_shown_before(self.boundary, self.context.outline)
        return shown - sum_saved_tokens_from(self.boundary_seq, self.edits)

    @property
    def tokens_above_goal(self) -> int:
        """Returns how many tokens are above the goal."""
        return self.tokens - self.context.goal_tokens

    @property
    def fits_limit(self) -> bool:
        return self.tokens <= self.context.limit_tokens

    @property
    def pressure(self) -> float:
        """Returns the share of the window without the reserve that messages take."""
        budget = self.context.budget
        return budget.compute_pressure(budget.calibrate_tokens(self.message_tokens))

    def cut_before(self, seq: int) -> Draft:
        """Returns the same view with its verbatim part beginning at `seq`; at the round with the first new message, if
        that is before it.
        """
        if seq > self.context.first_new_seq:
            seq = find_round_start(self.context.tail, self.context.first_new_seq)
        kept = {edit_seq: edit for edit_seq, edit in self.edits.items() if edit_seq >= seq}
        return replace(self, boundary=self.context.tail.build_boundary(seq), edits=kept)

    def iterate_editable_messages(self) -> Iterator[LogMessage]:
        """Yields the messages of the verbatim part that may be edited, oldest first: none that are new or pinned."""
        tail, pinned = self.context.tail, self.context.pinned_seqs
        end = max(0, self.context.first_new_seq - tail.start_seq)
        shown = tail.messages[self.boundary_seq - tail.start_seq : end]
        return (entry for entry in shown if entry.seq not in pinned) if pinned else iter(shown)

    def list_editable_but_request(self) -> list[LogMessage]:
        """Returns the same messages without the newest user message, which is the request itself. It may be older than
        what is new: an agent's task."""
        request = self.context.tail.newest_user_message
        return [entry for entry in self.iterate_editable_messages() if request is None or entry.seq != request.seq]

    def list_editable_results(self) -> list[LogMessage]:
        """Returns tool results that may be edited and are not condensed, oldest first: none that are new or pinned."""
        shown, fixed = (self.boundary_seq, self.context.first_new_seq), self.condensed_seqs | self.context.pinned_seqs
        return [
            entry
            for entry in self.context.tail.tool_results
            if shown[0] <= entry.seq < shown[1] and entry.seq not in fixed
        ]

    def list_new_messages(self) -> list[LogMessage]:
        """Returns the new messages of the verbatim part that are not pinned, oldest first."""
        tail, pinned = self.context.tail, self.context.pinned_seqs
        start = max(self.boundary_seq, self.context.first_new_seq) - tail.start_seq
        return [entry for entry in tail.messages[start:] if entry.seq not in pinned]

    def start_editing(self) -> DraftEditor:
        """Returns an editor for many messages of the view."""
        return DraftEditor(self)

    def add_note(self, code: str, **facts: int | float | str) -> Draft:
        return replace(self, notes=(*self.notes, PlanNote(code, facts)))

    def note_removed_tokens(self, before: Draft, code: str, **facts: int | float | str) -> Draft:
        """Returns the draft with a note of the tokens that it has fewer than before; that one if it has none fewer."""
        removed = before.tokens - self.tokens
        return self.add_note(code, **facts, tokens=removed) if removed else before

    @property
    def condensed_seqs(self) -> set[int]:
        """Returns the messages of rounds that are condensed to one line per call."""
        return {seq for seq, edit in self.edits.items() if edit.kind == "told"}


class DraftEditor:
    """Edits the messages of a draft. Mutable: with frozen drafts, a thousand edits would copy the edits a thousand
    times.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._edits = dict(draft.edits)
        self._condensed_seqs = draft.condensed_seqs
        self.tokens_above_goal = draft.tokens_above_goal
        """How much is left to remove until the goal is reached."""

    def iterate_until_goal(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yields messages or rounds until the goal is reached."""
        for entry in entries:
            if self.tokens_above_goal <= 0:
                return
            yield entry

    def apply_operation_if_smaller(self, entry: LogMessage, kind: EditKind, operation: EditOperation) -> bool:
        """Applies one more operation to a message if that makes the message smaller. Returns whether it does."""
        if entry.seq in self._condensed_seqs:
            return False
        known = self._find_operations(entry)
        if operation[0] in CONTENT_CUT_OPERATIONS and entry.message.role in TOOL_RESULT_ROLES:
            known = tuple(one for one in known if one[0] not in CONTENT_CUT_OPERATIONS)
        ops = add_edit_operation(known, operation)
        return self._put_edit_if_smaller(
            entry, kind, ops, self._draft.context.counter.count_message(entry.message.edit(ops))
        )

    def cap_message(self, entry: LogMessage, cap_tokens: int) -> bool:
        """Cuts the middle out of a message's long texts, so that the message takes at most `cap_tokens`, or the fewest
        tokens that are possible. Returns whether that makes it smaller.
        """
        if entry.seq in self._condensed_seqs or self.count_message_tokens(entry) <= cap_tokens:
            return False
        count = self._draft.context.counter.count_message
        replaced = CONTENT_CUT_OPERATIONS if entry.message.role in TOOL_RESULT_ROLES else {"shorten"}
        others = tuple(op for op in self._find_operations(entry) if op[0] not in replaced)
        message = entry.message.edit(others) if others else entry.message
        tokens = count(message) if others else entry.tokens
        share, tokens = find_fitting_text_share(message, tokens, cap_tokens, count)
        return self._put_edit_if_smaller(entry, "truncated", (*others, ("shorten", share)), tokens)

    def put_edit(self, edit: Edit) -> None:
        known = self._edits.get(edit.seq)
        self.tokens_above_goal -= edit.saved_tokens - (known.saved_tokens if known else 0)
        self._edits[edit.seq] = edit

    def count_message_tokens(self, entry: LogMessage) -> int:
        """Returns the tokens of a message with the edits so far."""
        known = self._edits.get(entry.seq)
        return entry.tokens if known is None else known.tokens

    def read_message_text(self, entry: LogMessage) -> str:
        """Returns the text of a message with the edits so far."""
        known = self._edits.get(entry.seq)
        if known is None or entry.seq in self._condensed_seqs:
            return entry.message.text
        return entry.message.edit(known.ops).text

    def _find_operations(self, entry: LogMessage) -> tuple[EditOperation, ...]:
        known = self._edits.get(entry.seq)
        return () if known is None else known.ops

    def _put_edit_if_smaller(
        self, entry: LogMessage, kind: EditKind, ops: tuple[EditOperation, ...], tokens: int
    ) -> bool:
        """Shows a message with operations applied, the last of them new, if that makes it smaller. Returns whether it
        does.
        """
        if tokens > self.count_message_tokens(entry) - (0 if ops[-1][0] in UNCOUNTED_OPERATIONS else 1):
            return False
        self.put_edit(Edit(entry.seq, kind, ops, tokens, entry.tokens - tokens))
        return True

    def build_draft(self) -> Draft:
        return replace(self._draft, edits=self._edits)

    def finish_stage(self, code: str, **facts: int | float | str) -> Draft:
        """Returns the draft with its edits and a note of what they freed; the draft as it was if they freed nothing."""
        removed = self._draft.tokens_above_goal - self.tokens_above_goal
        return self.build_draft().add_note(code, **facts, tokens=removed) if removed else self._draft


def sum_saved_tokens_from(seq: int, edits: Mapping[int, Edit]) -> int:
    """Returns the tokens that edits save in the log from `seq` on."""
    return sum(edit.saved_tokens for edit_seq, edit in edits.items() if edit_seq >= seq)


def select_pins_before(boundary: Boundary, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
    return tuple(pin for pin in pins if pin.from_seq < boundary.to_seq)


def select_user_text(boundary: Boundary, outline: Outline) -> tuple[UserLine, ...]:
    """Returns the user text that a view with this boundary shows: none of a message that it shows anyway."""
    if not outline.user_texts or not boundary.to_seq:
        return ()
    shown_seqs = {seq for pin in select_pins_before(boundary, outline.pins) for seq in range(pin.from_seq, pin.to_seq)}
    if boundary.anchor_seq is not None:
        shown_seqs.add(boundary.anchor_seq)
    return find_user_text(outline.user_texts, boundary.to_seq).select_before(boundary.to_seq, shown_seqs)


def count_tokens_shown_before(boundary: Boundary, outline: Outline) -> int:
    """Returns the tokens of what is shown from before a boundary: its anchor, the pins and the user text."""
    tokens = sum(pin.tokens for pin in select_pins_before(boundary, outline.pins))
    user_text = find_user_text(outline.user_texts, boundary.to_seq)
    tokens += user_text.count_tokens(select_user_text(boundary, outline))
    # An anchor that is pinned is shown once.
    pinned = any(pin.from_seq == boundary.anchor_seq for pin in outline.pins)
    return tokens if pinned else tokens + boundary.anchor_tokens


def find_fitting_text_share(
    message: Item, tokens: int, cap_tokens: int, count_message: Callable[[Item], int]
) -> tuple[float, int]:
    """Returns the share of its texts that a message may keep to take at most `cap_tokens`, and the tokens that it then
    takes; the smallest share that was tried if none is small enough.

    Args:
        tokens: tokens of the whole message.
        count_message: counts the tokens of a message.
    """
    share = FIRST_ATTEMPT_FACTOR * cap_tokens / max(1, tokens)
    best: tuple[float, int] | None = None
    for attempt in range(MAX_ATTEMPTS):
        taken = count_message(message.edit([("shorten", share)]))
        if taken <= cap_tokens and (best is None or taken > best[1]):
            best = share, taken
        if best is not None and (best[1] >= GOOD_FILL_SHARE * cap_tokens or attempt >= SUFFICIENT_ATTEMPTS):
            return best
        # The text is not equally dense everywhere: correct the share by the error of this attempt. After two attempts
        # that were too long, shrink by a fixed factor, which is sure to end.
        share *= (
            min(MAX_GROWTH_FACTOR, SAFETY_FACTOR * cap_tokens / taken)
            if taken <= cap_tokens or attempt < 2
            else SHRINK_FACTOR
        )
    return best or (share, count_message(message.edit([("shorten", share)])))
