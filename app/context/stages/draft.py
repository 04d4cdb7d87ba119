"""A view that is being shortened: what a stage takes and returns. Tokens are raw counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from app.context.plan.budget import Budget
from app.context.plan.log_cuts import Tail
from app.context.plan.outline import Boundary, Note, Pin
from app.context.plan.policy import Policy
from app.context.stages.excerpt import share_within
from app.context.stages.round_lines import RESULT_ROLES
from app.context.view.message_edits import Edit, EditKind, Op, body_after, with_op
from app.context.view.view_messages import Counter, summary_message_tokens
from app.conversation.messages import Chunk, LogMessage, text_of

UNCOUNTED_OPS = frozenset({"thoughtless"})
"""They remove what is not counted as tokens of the prompt, or not by every provider."""
CUTS = frozenset({"shorten", "contents"})
"""They cut the content. Of a result, which has nothing else to cut, the later one is done to the whole."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What no stage changes."""

    instructions_tokens: int
    tail: Tail
    budget: Budget
    policy: Policy
    count: Counter
    goal_ratio: float = 1.0
    """What a stage that is at work should leave, as a share of the limit."""
    pins: tuple[Pin, ...] = ()
    omitted: Set[int] = frozenset()
    """Messages that the client leaves out."""

    @property
    def limit_tokens(self) -> int:
        """The most that the view may take."""
        return self.budget.raw(self.budget.hard)

    @property
    def goal_tokens(self) -> int:
        return int(self.limit_tokens * self.goal_ratio)

    @property
    def effective_tokens(self) -> int:
        """What the reserve and instructions leave of the window."""
        return max(0, self.budget.raw(self.budget.pruning) - self.instructions_tokens)

    @property
    def pinned(self) -> set[int]:
        """Messages that are pinned."""
        return {seq for pin in self.pins for seq in range(pin.from_seq, pin.to_seq)}


@dataclass(frozen=True, slots=True)
class Draft:
    """A view in the making: chunks, pins, the anchor, and the log from the boundary on, some of it edited."""

    scene: Scene
    chunks: tuple[Chunk, ...]
    boundary: Boundary
    edits: Mapping[int, Edit] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def boundary_seq(self) -> int:
        return self.boundary.to_seq

    @property
    def dropped(self) -> int:
        """Messages neither shown nor covered by a chunk, without those that the client leaves out."""
        tail = self.scene.tail
        forgotten_to = self.chunks[0].from_seq if self.chunks else tail.start_seq
        gaps = ((0, forgotten_to), (tail.start_seq, self.boundary_seq))
        missing = sum(to_seq - from_seq for from_seq, to_seq in gaps)
        omitted = self.scene.omitted
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
        """Those from before the boundary: the others are in the tail."""
        return pins_before(self.boundary, self.scene.pins)

    @property
    def tokens(self) -> int:
        return self.scene.instructions_tokens + self.summary_tokens + self.verbatim_tokens

    @property
    def message_tokens(self) -> int:
        return self.tokens - self.scene.instructions_tokens

    @property
    def summary_tokens(self) -> int:
        return summary_message_tokens(self.chunks, self.dropped, self.scene.count)

    @property
    def verbatim_tokens(self) -> int:
        """Pins, anchor, and the log from the boundary on."""
        shown = self.scene.tail.tokens_from(self.boundary_seq) + tokens_before(self.boundary, self.scene.pins)
        return shown - saved_from(self.boundary_seq, self.edits)

    @property
    def excess_tokens(self) -> int:
        """How much is left to remove until the goal is reached."""
        return self.tokens - self.scene.goal_tokens

    @property
    def fits(self) -> bool:
        return self.tokens <= self.scene.limit_tokens

    @property
    def is_at_goal(self) -> bool:
        return self.excess_tokens <= 0

    @property
    def pressure(self) -> float:
        """Share of the window without the reserve that messages take."""
        budget = self.scene.budget
        return budget.pressure(budget.calibrated(self.message_tokens))

    def cut_at(self, seq: int) -> Draft:
        """The same view with its verbatim part beginning at `seq`."""
        kept = {at: edit for at, edit in self.edits.items() if at >= seq}
        return replace(self, boundary=self.scene.tail.boundary(seq), edits=kept)

    def shown(self) -> Iterator[LogMessage]:
        """The messages of the tail that may be edited, oldest first."""
        tail, pinned = self.scene.tail, self.scene.pinned
        shown = tail.messages[self.boundary_seq - tail.start_seq :]
        return (entry for entry in shown if entry.seq not in pinned) if pinned else iter(shown)

    def results(self) -> list[LogMessage]:
        """Tool results that may be edited and are still there, oldest first."""
        from_seq, fixed = self.boundary_seq, self.told | self.scene.pinned
        return [entry for entry in self.scene.tail.results if entry.seq >= from_seq and entry.seq not in fixed]

    def editing(self) -> Editing:
        """To edit many messages of the view at once."""
        return Editing(self)

    def with_edits(self, edits: Mapping[int, Edit]) -> Draft:
        return replace(self, edits=edits)

    def noted(self, code: str, **facts: int | float | str) -> Draft:
        return replace(self, notes=(*self.notes, Note(code, facts)))

    @property
    def told(self) -> set[int]:
        """Messages of rounds that are told in a line per call."""
        return {seq for seq, edit in self.edits.items() if edit.kind == "told"}


class Editing:
    """Edits to a draft in the making. Mutable, so that a thousand of them cost a thousand steps."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._edits = dict(draft.edits)
        self._told = draft.told
        self.excess_tokens = draft.excess_tokens
        """How much is left to remove until the goal is reached."""

    def op(self, entry: LogMessage, kind: EditKind, op: Op) -> bool:
        """One more operation on a message, if that makes the message smaller. Whether it does."""
        if entry.seq in self._told:
            return False
        known = self._ops(entry)
        if op[0] in CUTS and entry.message.role in RESULT_ROLES:
            known = tuple(one for one in known if one[0] not in CUTS)
        ops = with_op(known, op)
        return self._replace(entry, kind, ops, self._draft.scene.count.message(body_after(entry.message.body, ops)))

    def cap(self, entry: LogMessage, cap_tokens: int) -> bool:
        """Cut the middle out of a message's long texts, so that it takes at most so many tokens, or the fewest that
        can be. Whether that makes it smaller."""
        if entry.seq in self._told or self.tokens(entry) <= cap_tokens:
            return False
        count = self._draft.scene.count.message
        replaced = CUTS if entry.message.role in RESULT_ROLES else {"shorten"}
        others = tuple(op for op in self._ops(entry) if op[0] not in replaced)
        body = body_after(entry.message.body, others)
        share, tokens = share_within(body, count(body) if others else entry.tokens, cap_tokens, count)
        return self._replace(entry, "truncated", (*others, ("shorten", share)), tokens)

    def put(self, edit: Edit) -> None:
        known = self._edits.get(edit.seq)
        self.excess_tokens -= edit.saved_tokens - (known.saved_tokens if known else 0)
        self._edits[edit.seq] = edit

    def tokens(self, entry: LogMessage) -> int:
        """What a message takes so far."""
        known = self._edits.get(entry.seq)
        return entry.tokens if known is None else known.tokens

    def text(self, entry: LogMessage) -> str:
        """The text of a message as it is shown so far."""
        known = self._edits.get(entry.seq)
        if known is None or entry.seq in self._told:
            return entry.message.text
        return text_of(body_after(entry.message.body, known.ops).get("content"))

    def _ops(self, entry: LogMessage) -> tuple[Op, ...]:
        known = self._edits.get(entry.seq)
        return () if known is None else known.ops

    def _replace(self, entry: LogMessage, kind: EditKind, ops: tuple[Op, ...], tokens: int) -> bool:
        """Show a message after some operations, the last of them new, if that makes it smaller. Whether it does."""
        if tokens > self.tokens(entry) - (0 if ops[-1][0] in UNCOUNTED_OPS else 1):
            return False
        self.put(Edit(entry.seq, kind, ops, tokens, entry.tokens - tokens))
        return True

    def draft(self) -> Draft:
        return self._draft.with_edits(self._edits)


def saved_from(seq: int, edits: Mapping[int, Edit]) -> int:
    """What edits save of the log from `seq` on."""
    return sum(edit.saved_tokens for at, edit in edits.items() if at >= seq)


def pins_before(boundary: Boundary, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
    return tuple(pin for pin in pins if pin.from_seq < boundary.to_seq)


def tokens_before(boundary: Boundary, pins: tuple[Pin, ...]) -> int:
    """What is shown from before a boundary: its anchor and the pins."""
    tokens = sum(pin.tokens for pin in pins_before(boundary, pins))
    pinned = any(pin.from_seq == boundary.anchor_seq for pin in pins)
    return tokens if pinned else tokens + boundary.anchor_tokens
