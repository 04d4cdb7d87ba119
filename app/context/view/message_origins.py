"""Says what each message of a view stands for: the log messages that it shows, summarizes or quotes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from app.context.plan.outline import Plan, Quotation
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.message_edits import count_replaced_messages
from app.context.view.view_rendering import (
    SUMMARY_PREAMBLE,
    list_shown_seqs,
    map_quotations_by_seq,
    render_dropped_notice,
    render_summary_section,
)
from app.conversation.conversation_types import Summary


class OriginPart(msgspec.Struct, frozen=True):
    """A part of a message that the gateway composed. It stands for log messages `[from_seq, to_seq)`, if
    these are set.
    """

    kind: Literal["introduction", "summary", "note", "passage"]
    from_seq: int | None = None
    to_seq: int | None = None
    summary_id: str | None = None
    text: str | None = None
    """The part's text. The texts of all parts, joined, are the message's content. None for passages."""


class MessageOrigin(msgspec.Struct, frozen=True):
    """What a message of a view stands for: log messages `[from_seq, to_seq)`; for a quotation or user text,
    those that its parts name.
    """

    kind: Literal["instructions", "summary", "user_text", "quotation", "message"]
    from_seq: int | None = None
    to_seq: int | None = None
    before_seq: int | None = None
    """The message that a quotation was made for."""
    parts: Sequence[OriginPart] = ()


def compute_message_origins(
    plan: Plan, *, instruction_count: int, next_seq: int, versions: ClientVersions = NO_VERSIONS
) -> list[MessageOrigin]:
    """Returns one origin for each message that `render_view` makes of the same plan, in the same order.

    Args:
        instruction_count: how many leading system and developer messages there are.
        next_seq: one past the last log message.
        versions: what the client shows in place of log messages.
    """
    found = [MessageOrigin("instructions")] * instruction_count
    if plan.summaries or plan.dropped_message_count:
        found.append(_build_summary_origin(plan))
    if plan.user_text:
        parts = [OriginPart("passage", one.seq, one.seq + 1) for one in plan.user_text]
        found.append(MessageOrigin("user_text", parts=parts))
    quoted = map_quotations_by_seq(plan)
    for seq in list_shown_seqs(plan, next_seq):
        if seq in quoted:
            found.append(_build_quotation_origin(quoted[seq]))
        version = versions.get(seq)
        count = 1 if version is None else len(version.bodies or ())
        edit = plan.edits.get(seq) if count else None
        replaced_count = 1 if edit is None else count_replaced_messages(edit)
        end = seq + replaced_count if version is None else version.to_seq
        # A client may show several messages in place of one. If another message's edit stands for this one, its last
        # body is not shown.
        found += [MessageOrigin("message", seq, end)] * (count if replaced_count else count - 1)
    return found


def _build_summary_origin(plan: Plan) -> MessageOrigin:
    parts = [OriginPart("introduction", text=SUMMARY_PREAMBLE)] if plan.summaries else []
    parts += [_build_summary_part(summary) for summary in plan.summaries]
    if plan.dropped_message_count:
        covered = plan.summaries[-1].to_seq if plan.summaries else 0
        parts.append(
            OriginPart("note", covered, plan.boundary_seq, text=render_dropped_notice(plan.dropped_message_count))
        )
    return MessageOrigin("summary", plan.summaries[0].from_seq if plan.summaries else 0, parts[-1].to_seq, parts=parts)


def _build_summary_part(summary: Summary) -> OriginPart:
    return OriginPart(
        "summary",
        summary.from_seq,
        summary.to_seq,
        summary.id,
        render_summary_section(summary.text, through_turn=summary.through_turn),
    )


def _build_quotation_origin(quotation: Quotation) -> MessageOrigin:
    parts = [OriginPart("passage", passage.seq, passage.seq + 1) for passage in quotation.passages]
    return MessageOrigin("quotation", before_seq=quotation.before_seq, parts=parts)
