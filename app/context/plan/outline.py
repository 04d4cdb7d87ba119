"""What a decision is made from and what comes of it: `Outline` in, `Plan` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal

import msgspec

from app.context.view.message_edits import Edit
from app.conversation.messages import LogMessage, Summary

ViewStatus = Literal["full", "summarized", "trimmed"]
SummarizeMode = Literal["auto", "never", "now", "ahead"]
SummaryStyle = Literal["additive", "checkpoint", "recursive"]


class Boundary(msgspec.Struct, frozen=True):
    """A place in the log where a verbatim part may begin, and what must be known of it. Tokens are raw counts."""

    to_seq: int = 0
    """The first message behind it."""
    tokens_total: int = 0
    """Tokens of the log before it."""
    anchor_seq: int | None = None
    """The user message of the turn that it falls into; None where a turn begins here."""
    anchor_tokens: int = 0
    through_turn: int = 0
    """How many turns begin in the log before it."""


LOG_START = Boundary()


class Pin(msgspec.Struct, frozen=True):
    """Log messages `[from_seq, to_seq)`, a whole round, that are always shown verbatim. Tokens are a raw count."""

    from_seq: int
    to_seq: int
    tokens: int


class QuotedPassage(msgspec.Struct, frozen=True):
    """What is quoted of one message: its content text from `start` to `end`, in characters; all of it without them."""

    seq: int
    spans: tuple[tuple[int, int], ...] = ()


class Quotation(msgspec.Struct, frozen=True):
    """Old messages quoted in front of the user message `before_seq`, in the order of the log."""

    before_seq: int
    passages: tuple[QuotedPassage, ...]
    tokens: int
    """Raw count of the message that quotes them."""


class LastView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of the last view made for a window under a policy, so that the next one begins with its bytes."""

    boundary: Boundary = LOG_START
    edits: tuple[Edit, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    level: float = 0.0
    """The highest pressure threshold that it was above."""
    tokens: int = 0
    """What it took right after the last time it was shortened, calibrated."""
    asked_seq: int = 0
    """No view begins before this: a compaction through it was asked for."""


MAX_STORED_VIEWS = 8
"""How many of a conversation's last views are kept: one for each window and policy that it is answered with."""


class Outline(msgspec.Struct, frozen=True):
    """What the planner knows of a conversation. Tokens are raw counts."""

    instructions_tokens: int
    """Leading system messages, tool schemas and the fixed overhead of a request."""
    log_tokens: int
    """The whole log, new messages included."""
    next_seq: int
    """One past the last message, new messages included."""
    summaries: tuple[Summary, ...] = ()
    """The active chain from the log's start, oldest first, each beginning where the one before ended, or behind what
    the client leaves out there. Under a policy whose summaries replace each other: all of them, each from the log's
    start, by reach. No folds."""
    folds: tuple[Summary, ...] = ()
    """Folds over a prefix of `chunks`."""
    tail: Sequence[LogMessage] | None = None
    """Messages from `tail_start` to the end, new ones included; None while not loaded."""
    tail_start: Boundary | None = None
    """Where the tail begins; None: at the last chunk's end."""
    new_from_seq: int = 0
    """The first new message of this request."""
    pins: tuple[Pin, ...] = ()
    """By place in the log, not overlapping."""
    last_view: LastView = LastView()
    omitted_seqs: Set[int] = frozenset()
    """Seqs of the messages that the client leaves out of its history. They take no tokens."""


class SummaryRange(msgspec.Struct, frozen=True):
    """Log messages `[from_seq, to_seq)` to be summarized into one chunk; with `folds`, from these chunks' texts."""

    from_seq: int
    to_seq: int
    folds: tuple[str, ...] = ()
    style: SummaryStyle = "additive"
    """What kind of summary: of a stretch, a checkpoint of everything, or a rolling summary that replaces `base`."""
    base: str = ""
    """Id of the chunk whose text is read in place of the log before its end (style `recursive`)."""


class PlanNote(msgspec.Struct, frozen=True):
    """Why the plan is as it is: a short code, and the numbers behind it."""

    code: str
    facts: Mapping[str, int | float | str] = msgspec.field(default_factory=dict)


class Plan(msgspec.Struct, frozen=True):
    """A view, described: summaries; what is pinned from before the boundary and (where the tail begins inside a turn)
    that turn's user message, in the order of the log; the log from `boundary_seq`, some of it edited; quotations."""

    status: ViewStatus
    summaries: tuple[Summary, ...]
    """Shown, oldest first, folds in place of what they fold."""
    boundary: Boundary
    prompt_tokens: int
    """Raw count of the whole view."""
    fits: bool
    """Whether it is within `Budget.hard`."""
    pins: tuple[Pin, ...] = ()
    """Shown in front of the tail, from before the boundary."""
    edits: Mapping[int, Edit] = msgspec.field(default_factory=dict)
    quotations: tuple[Quotation, ...] = ()
    dropped_message_count: int = 0
    """Messages neither shown nor covered by a chunk; a notice stands for them."""
    to_summarize: tuple[SummaryRange, ...] = ()
    needs_tail: Boundary | None = None
    """The decision needs the messages from here on: load them and plan again."""
    level: float = 0.0
    shortened_tokens: int = 0
    """`LastView.level` and `tokens` of this view."""
    notes: tuple[PlanNote, ...] = ()

    @property
    def boundary_seq(self) -> int:
        return self.boundary.to_seq

    @property
    def anchor_seq(self) -> int | None:
        """The user message repeated in front of the tail; None where it is pinned, and shown as that."""
        seq = self.boundary.anchor_seq
        return None if any(pin.from_seq == seq for pin in self.pins) else seq

    @property
    def shows_log_unchanged(self) -> bool:
        """Whether the log is shown as it is."""
        return not (
            self.boundary.to_seq or self.edits or self.summaries or self.dropped_message_count or self.quotations
        )


def make_last_view(plan: Plan, before: LastView, *, was_requested: bool = False) -> LastView:
    """What is kept of a view that was sent.

    Args:
        before: what was kept of the one before it.
        was_requested: whether the compaction that it shows was asked for, and is not to be undone by a small log.
    """
    return LastView(
        boundary=plan.boundary,
        edits=tuple(plan.edits.values()) if plan.edits else (),
        quotations=plan.quotations,
        level=plan.level,
        tokens=plan.shortened_tokens,
        asked_seq=plan.boundary.to_seq if was_requested else before.asked_seq,
    )


def limit_view_to_log(view: LastView, last_seq: int) -> LastView:
    """What is kept of a view holds for a log that ends with `last_seq`."""
    return msgspec.structs.replace(
        view,
        edits=tuple(edit for edit in view.edits if edit.seq <= last_seq),
        quotations=tuple(one for one in view.quotations if one.before_seq <= last_seq),
    )
