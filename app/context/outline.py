"""What a decision is made from and what comes of it: `Outline` in, `Plan` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from app.conversation.messages import Chunk, LogMessage, Message

Status = Literal["full", "summarized", "trimmed"]
Summarize = Literal["auto", "never", "now"]
Style = Literal["additive", "checkpoint", "recursive"]


class Outline(msgspec.Struct, frozen=True):
    """What the planner knows of a conversation. Tokens are raw counts."""

    instructions_tokens: int
    """Leading system messages, tool schemas and the fixed overhead of a request."""
    log_tokens: int
    """The whole log, new messages included."""
    next_seq: int
    """One past the last message, new messages included."""
    chunks: tuple[Chunk, ...] = ()
    """The active chain from the log's start, oldest first, each beginning where the one before ended. No folds."""
    folds: tuple[Chunk, ...] = ()
    """Folds over a prefix of `chunks`."""
    tail: Sequence[LogMessage] | None = None
    """Messages from the last chunk's end (or 0) to the end, new ones included; None while not loaded."""
    new_from_seq: int = 0
    """The first new message of this request."""
    last_boundary_seq: int = 0
    """Where the verbatim part began in the last view made for this window (0: at the start)."""


class Range(msgspec.Struct, frozen=True):
    """Log messages `[from_seq, to_seq)` to be summarized into one chunk; with `folds`, from these chunks' texts."""

    from_seq: int
    to_seq: int
    folds: tuple[str, ...] = ()
    style: Style = "additive"
    """What kind of summary: of a stretch, a checkpoint of everything, or a rolling summary that replaces `base`."""
    base: str = ""
    """Id of the chunk whose text is read in place of the log before its end (style `recursive`)."""


class Note(msgspec.Struct, frozen=True):
    """Why the plan is as it is: a short code, and the numbers behind it."""

    code: str
    facts: Mapping[str, int | float | str] = msgspec.field(default_factory=dict)


class Plan(msgspec.Struct, frozen=True):
    """A view, described: summaries, then (where the tail begins inside a turn) that turn's user message, then the log
    from `boundary_seq` with `replaced` messages in their shortened form."""

    status: Status
    chunks: tuple[Chunk, ...]
    """Shown, oldest first, folds in place of what they fold."""
    boundary_seq: int
    anchor_seq: int | None
    prompt_tokens: int
    """Raw count of the whole view."""
    fits: bool
    """Whether it is within `Budget.hard`."""
    replaced: Mapping[int, Message] = msgspec.field(default_factory=dict)
    dropped: int = 0
    """Messages neither shown nor covered by a chunk; a notice stands for them."""
    to_summarize: tuple[Range, ...] = ()
    needs_tail: bool = False
    """The decision needs `Outline.tail`: load it and plan again."""
    notes: tuple[Note, ...] = ()
