"""Says what a plan does with each message of a log: shown, shortened, condensed, summarized or dropped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.context.plan.outline import Plan
from app.conversation.conversation_types import LogMessage, Summary

FateKind = Literal["verbatim", "anchor", "pinned", "masked", "truncated", "cleared", "told", "summarized", "dropped"]


SHOWN_KINDS: Final = frozenset({"verbatim", "anchor", "pinned", "masked", "truncated", "cleared", "told"})
FATE_REASONS: Final[Mapping[FateKind, str]] = {
    "verbatim": "it is in the part of the log that is shown as it is",
    "anchor": "it is the question of the turn in whose middle the shown part begins",
    "pinned": "it is pinned",
    "masked": "it is a tool result that a later answer has made use of",
    "truncated": "it was longer than one message's share of the window",
    "cleared": "it is old, and its place was needed",
    "told": "it is part of an old tool round, told in a line per call",
    "summarized": "a summary stands for it",
    "dropped": "there was no room for it, and no summary stands for it",
}


@dataclass(frozen=True, slots=True)
class MessageFate:
    """What a plan does with one message of the log.

    Kind `anchor`: the question of a turn inside which the verbatim part begins, shown verbatim in front of that part.
    """

    seq: int
    role: str
    kind: FateKind
    summary_id: str | None
    """The summary that stands for the message, if `kind` is `summarized`."""
    tokens: int
    """Raw count of the message in the log."""
    shown_tokens: int
    """Raw count of what the view shows of the message itself, without summaries and quotations."""
    is_quoted: bool = False
    """Whether a quotation repeats the message, or a part of it."""

    @property
    def reason(self) -> str:
        reason = FATE_REASONS[self.kind]
        return f"{reason}; it is quoted, since it may bear on a newer message" if self.is_quoted else reason


def compute_message_fates(log: Sequence[LogMessage], plan: Plan) -> list[MessageFate]:
    """Returns the fate of each of these messages, in order."""
    quoted = {passage.seq for quotation in plan.quotations for passage in quotation.passages}
    return [_compute_message_fate(entry, plan, is_quoted=entry.seq in quoted) for entry in log]


def _compute_message_fate(entry: LogMessage, plan: Plan, *, is_quoted: bool) -> MessageFate:
    kind, summary = _choose_fate_kind(entry.seq, plan)
    edit = plan.edits.get(entry.seq)
    shown = edit.tokens if edit is not None else entry.tokens if kind in SHOWN_KINDS else 0
    told_by = summary.id if summary is not None else None
    return MessageFate(entry.seq, entry.message.role, kind, told_by, entry.tokens, shown, is_quoted)


def _choose_fate_kind(seq: int, plan: Plan) -> tuple[FateKind, Summary | None]:
    if seq >= plan.boundary_seq:
        edit = plan.edits.get(seq)
        return ("verbatim" if edit is None else edit.kind), None
    # A pinned message before the boundary is shown even if a summary stands for it, and an anchor that is pinned is
    # shown once, as a pin. So pins come before both.
    if any(pin.from_seq <= seq < pin.to_seq for pin in plan.pins):
        return "pinned", None
    if seq == plan.repeated_message_seq:
        return "anchor", None
    summary = next((summary for summary in plan.summaries if summary.from_seq <= seq < summary.to_seq), None)
    return ("dropped" if summary is None else "summarized"), summary
