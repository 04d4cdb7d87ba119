"""What each message of a view stands for: the places of the log that it shows, tells or quotes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from app.context.plan.outline import Plan, Quotation
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.message_edits import messages_told
from app.context.view.view_messages import PREAMBLE, notice, quotations_by_place, section, shown_seqs
from app.conversation.messages import Chunk


class Part(msgspec.Struct, frozen=True):
    """A part of a message that is put together by us. It stands for log messages `[from_seq, to_seq)`, if for any."""

    kind: Literal["introduction", "summary", "note", "passage"]
    from_seq: int | None = None
    to_seq: int | None = None
    summary_id: str | None = None
    text: str | None = None
    """What it is of the message's content, of which all parts follow on each other; not told of passages."""


class Origin(msgspec.Struct, frozen=True):
    """A message of a view. It stands for log messages `[from_seq, to_seq)`; a quotation for what its parts name."""

    kind: Literal["instructions", "summary", "quotation", "message"]
    from_seq: int | None = None
    to_seq: int | None = None
    before_seq: int | None = None
    """The message that a quotation was made for."""
    parts: Sequence[Part] = ()


def origins(plan: Plan, *, instructions: int, next_seq: int, versions: ClientVersions = NO_VERSIONS) -> list[Origin]:
    """One for each message that `render` makes of the same plan, in the same order.

    Args:
        instructions: how many leading system and developer messages there are.
        next_seq: one past the last log message.
        versions: what the client shows in the place of log messages.
    """
    found = [Origin("instructions")] * instructions
    if plan.chunks or plan.dropped:
        found.append(_summary(plan))
    quoted = quotations_by_place(plan)
    for seq in shown_seqs(plan, next_seq):
        if seq in quoted:
            found.append(_quotation(quoted[seq]))
        version = versions.get(seq)
        count = 1 if version is None else len(version.bodies or ())
        edit = plan.edits.get(seq) if count else None
        told = 1 if edit is None else messages_told(edit)
        end = seq + told if version is None else version.to_seq
        found += [Origin("message", seq, end)] * (count if told else count - 1)
    return found


def _summary(plan: Plan) -> Origin:
    parts = [Part("introduction", text=PREAMBLE)] if plan.chunks else []
    parts += [_told(chunk) for chunk in plan.chunks]
    if plan.dropped:
        covered = plan.chunks[-1].to_seq if plan.chunks else 0
        parts.append(Part("note", covered, plan.boundary_seq, text=notice(plan.dropped)))
    return Origin("summary", plan.chunks[0].from_seq if plan.chunks else 0, parts[-1].to_seq, parts=parts)


def _told(chunk: Chunk) -> Part:
    return Part("summary", chunk.from_seq, chunk.to_seq, chunk.id, section(chunk.text, through_turn=chunk.through_turn))


def _quotation(quotation: Quotation) -> Origin:
    parts = [Part("passage", passage.seq, passage.seq + 1) for passage in quotation.passages]
    return Origin("quotation", before_seq=quotation.before_seq, parts=parts)
