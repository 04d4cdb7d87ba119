"""The planner's input and output: `Outline` in, `Plan` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal

import msgspec

from app.context.user_text.user_text import (
    NO_USER_TEXT,
    UserLine,
    UserText,
    UserTexts,
    find_user_text,
)
from app.context.view.message_edits import Edit, select_whole_edits
from app.conversation.conversation_types import LogMessage, Summary

ViewStatus = Literal["full", "summarized", "trimmed"]
SummarizeMode = Literal["auto", "never", "now", "ahead"]
SummaryStyle = Literal["additive", "checkpoint", "recursive"]


class Boundary(msgspec.Struct, frozen=True):
    """A place in the log where a verbatim part may begin, with the totals of the log before it. Tokens are
    raw counts.
    """

    to_seq: int = 0
    """The first message after the boundary."""
    tokens_total: int = 0
    """Tokens of the log before the boundary."""
    anchor_seq: int | None = None
    """The user message of the turn that the boundary cuts; None if a turn begins here."""
    anchor_tokens: int = 0
    through_turn: int = 0
    """How many turns begin in the log before the boundary."""


LOG_START = Boundary()


class Pin(msgspec.Struct, frozen=True):
    """Log messages `[from_seq, to_seq)`, a whole round, that are always shown verbatim. Tokens are a raw count."""

    from_seq: int
    to_seq: int
    tokens: int


class QuotedPassage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The quoted part of one message: spans of its content text, each from start to end in characters; without spans,
    the whole text.
    """

    seq: int
    spans: tuple[tuple[int, int], ...] = ()
    date: str = ""
    """The day on which the message was stored, as `2026-11-24` in UTC; empty if that does not say when it was
    written."""


class Quotation(msgspec.Struct, frozen=True):
    """Old messages quoted in front of the user message `before_seq`, in the order of the log."""

    before_seq: int
    passages: tuple[QuotedPassage, ...]
    tokens: int
    """Raw count of the message that shows the quotation."""


class LastView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of the last view for one window and policy, so that the next view begins with the same bytes and
    the provider's prompt cache is used.
    """

    boundary: Boundary = LOG_START
    edits: tuple[Edit, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    level: float = 0.0
    """The highest pressure threshold that the view was at or above."""
    tokens: int = 0
    """Calibrated tokens of the view right after it was last shortened."""
    asked_seq: int = 0
    """No view begins before this message: a client asked for a compaction through it."""
    user_text: UserText = NO_USER_TEXT
    """What is kept of the user messages before a boundary. It stays until the boundary moves."""
    cleared_seqs: tuple[int, ...] = ()
    """Messages with edits that the client asked for. Where it does not ask for them, the messages are whole again."""


MAX_STORED_VIEWS = 8
"""How many last views of a conversation are stored: one for each pair of window and policy."""


class Outline(msgspec.Struct, frozen=True):
    """What the planner knows of a conversation. Tokens are raw counts."""

    instructions_tokens: int
    """Leading system and developer messages, tool schemas and the fixed overhead of a request."""
    log_tokens: int
    """The whole log, new messages included."""
    next_seq: int
    """One past the last message, new messages included."""
    summaries: tuple[Summary, ...] = ()
    """The active chain from the log's start, oldest first. Each summary begins where the one before ended, or after
    messages there that the client leaves out. Under a policy whose summaries replace each other: all of them, each
    from the log's start, ordered by their ends. Without folds."""
    folds: tuple[Summary, ...] = ()
    """Folds over a prefix of `summaries`."""
    tail: Sequence[LogMessage] | None = None
    """Messages from `tail_start` to the end, new messages included; None while they are not loaded."""
    tail_start: Boundary | None = None
    """Where the tail begins; None: at the end of the last summary."""
    new_from_seq: int = 0
    """The first new message of this request."""
    pins: tuple[Pin, ...] = ()
    """Ordered by place in the log; they do not overlap."""
    last_view: LastView = LastView()
    omitted_seqs: Set[int] = frozenset()
    """Messages that the client leaves out of its history. They take no tokens."""
    user_texts: UserTexts = ()
    """Without messages that must not be shown."""

    @property
    def user_text_tokens(self) -> int:
        """Returns what the newest user text takes of a view that shows all of it."""
        return sum(one.count_tokens(one.lines) for one in self.user_texts[-1:])


class SummaryRange(msgspec.Struct, frozen=True):
    """Log messages `[from_seq, to_seq)` that one summary shall stand for. With `folds`, the summary is written from the
    texts of these summaries.
    """

    from_seq: int
    to_seq: int
    folds: tuple[str, ...] = ()
    style: SummaryStyle = "additive"
    """The kind of summary: of a stretch (`additive`), of everything (`checkpoint`), or a rolling summary that
    replaces `base` (`recursive`)."""
    base: str = ""
    """Id of the summary that is read in place of the log before its end (style `recursive`)."""


class PlanNote(msgspec.Struct, frozen=True):
    """A reason for the plan: a short code and its numbers."""

    code: str
    facts: Mapping[str, int | float | str] = msgspec.field(default_factory=dict)


class Plan(msgspec.Struct, frozen=True):
    """The description of a view, in the order of its messages: summaries; user text; pins from before the boundary and
    the anchor, in the order of the log; the log from `boundary_seq` on, some of it edited, with quotations between.
    """

    status: ViewStatus
    summaries: tuple[Summary, ...]
    """The summaries that are shown, oldest first; a fold stands in place of the summaries that it merges."""
    boundary: Boundary
    prompt_tokens: int
    """Raw count of the whole view."""
    fits: bool
    """Whether the view is within `Budget.limit`."""
    pins: tuple[Pin, ...] = ()
    """The pins from before the boundary. Those after it are in the verbatim part."""
    user_text: tuple[UserLine, ...] = ()
    """The lines that are shown of user messages from before the boundary."""
    edits: Mapping[int, Edit] = msgspec.field(default_factory=dict)
    quotations: tuple[Quotation, ...] = ()
    dropped_message_count: int = 0
    """Messages that are neither shown nor summarized; a notice stands for them."""
    to_summarize: tuple[SummaryRange, ...] = ()
    needs_tail: Boundary | None = None
    """If set, the planner needs the messages from this boundary on: load them and plan again."""
    is_cut_to_fit: bool = False
    """Whether the view leaves out or shortens messages only because they do not fit."""
    level: float = 0.0
    shortened_tokens: int = 0
    """`level` and this value are stored as `LastView.level` and `LastView.tokens` of this view."""
    notes: tuple[PlanNote, ...] = ()

    @property
    def boundary_seq(self) -> int:
        return self.boundary.to_seq

    @property
    def repeated_message_seq(self) -> int | None:
        """Returns the user message that is repeated in front of the verbatim part; None if there is none, or if it is
        shown as a pin.
        """
        seq = self.boundary.anchor_seq
        return None if any(pin.from_seq == seq for pin in self.pins) else seq

    @property
    def shows_log_unchanged(self) -> bool:
        """Says whether the view is the log as it is."""
        return not (
            self.boundary.to_seq or self.edits or self.summaries or self.dropped_message_count or self.quotations
        )


def make_last_view(
    plan: Plan, before: LastView, *, was_requested: bool = False, user_texts: UserTexts = ()
) -> LastView:
    """Returns what is stored of a view that was sent.

    Args:
        before: the last view by which it was planned.
        user_texts: the user text that the view chose from.
        was_requested: whether a client asked for the compaction that the view shows; later views do not undo it, even
            if the log would fit.
    """
    return LastView(
        boundary=plan.boundary,
        edits=tuple(plan.edits.values()) if plan.edits else (),
        quotations=plan.quotations,
        level=plan.level,
        tokens=plan.shortened_tokens,
        asked_seq=plan.boundary.to_seq if was_requested else before.asked_seq,
        # A long log is read in several turns: the next one reads on from the last (pipeline.view.user_text).
        user_text=find_user_text(user_texts, plan.boundary.to_seq, user_texts[-1]) if user_texts else NO_USER_TEXT,
        cleared_seqs=tuple(seq for seq in before.cleared_seqs if seq in plan.edits),
    )


def limit_last_view_to_log(view: LastView, last_seq: int) -> LastView:
    """Limits what is stored of a view to a log that ends with `last_seq`: a branch may be shorter than its parent."""
    return msgspec.structs.replace(
        view,
        edits=select_whole_edits(view.edits, lambda seq: seq <= last_seq),
        quotations=tuple(one for one in view.quotations if one.before_seq <= last_seq),
        user_text=view.user_text.limit_to_log(last_seq),
    )
