"""What a plan does with each message of a log: shown as it is, shortened, told by a summary, left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.context.outline import Plan
from app.conversation.messages import Chunk, LogMessage

Kind = Literal["verbatim", "anchor", "truncated", "summarized", "dropped"]


@dataclass(frozen=True, slots=True)
class Disposition:
    """One message of the log under a plan.

    `anchor` is the question of a turn whose middle is where the verbatim part begins, shown verbatim in front of it.
    """

    seq: int
    role: str
    kind: Kind
    chunk_id: str | None
    """The summary that stands for it, where `kind` is `summarized`."""
    tokens: int
    """Raw count of the message as it is in the log."""

    @property
    def is_shown(self) -> bool:
        """Whether the model sees the message itself, whole or shortened."""
        return self.kind in {"verbatim", "anchor", "truncated"}


def dispositions(log: Sequence[LogMessage], plan: Plan) -> list[Disposition]:
    """What becomes of each of these messages, in order."""
    return [_disposition(entry, plan) for entry in log]


def _disposition(entry: LogMessage, plan: Plan) -> Disposition:
    chunk = None if _is_in_tail(entry.seq, plan) else _chunk_over(entry.seq, plan.chunks)
    kind = _kind(entry.seq, plan, chunk)
    told_by = chunk.id if chunk is not None and kind == "summarized" else None
    return Disposition(entry.seq, entry.message.role, kind, told_by, entry.tokens)


def _kind(seq: int, plan: Plan, chunk: Chunk | None) -> Kind:
    if _is_in_tail(seq, plan):
        return "truncated" if seq in plan.replaced else "verbatim"
    if seq == plan.anchor_seq:
        return "anchor"
    return "dropped" if chunk is None else "summarized"


def _is_in_tail(seq: int, plan: Plan) -> bool:
    return seq >= plan.boundary_seq


def _chunk_over(seq: int, chunks: Sequence[Chunk]) -> Chunk | None:
    return next((chunk for chunk in chunks if chunk.from_seq <= seq < chunk.to_seq), None)
