"""Computes what a redaction changes in a family of branches that share the redacted messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import ClientVersion, Conversation, Summary
from app.store.contract.conversations import LogAppend
from app.store.sql.rows import Lineage

PINS_KEY: Final = "pins"
"""Key in `Conversation.marks`: pinned ranges of the log, with their tokens."""
REDACTED_KEY: Final = "redacted"
"""Key in `Conversation.marks`: the seqs of redacted messages, ascending."""


class MessageRedaction(msgspec.Struct, frozen=True):
    """A redacted message in the rows of `conversation_id`; its token count changes by `tokens_delta`."""

    conversation_id: str
    seq: int
    tokens_delta: int


RedactionsByConversation = Mapping[str, Sequence[MessageRedaction]]
"""For each conversation id, the changes in its log. Conversations without changes are left out."""


def find_redactions_by_conversation(
    changes: Sequence[MessageRedaction], lineages: Mapping[str, Lineage]
) -> RedactionsByConversation:
    """Returns which conversations share which changes.

    Args:
        lineages: lineages by id; may include conversations that share nothing.
    """
    shared = {
        member: [change for change in changes if _is_redaction_in_log(member, lineage, change)]
        for member, lineage in lineages.items()
    }
    return {member: found for member, found in shared.items() if found}


def _is_redaction_in_log(conversation_id: str, lineage: Lineage, change: MessageRedaction) -> bool:
    if conversation_id == change.conversation_id:
        return True
    return any(ancestor == change.conversation_id and change.seq <= upto_seq for ancestor, upto_seq in lineage)


def compute_running_total_shifts(conversation_id: str, changes: Iterable[MessageRedaction]) -> list[tuple[int, int]]:
    """Returns by how much the running totals of a conversation's own messages move: pairs (from this seq on,
    tokens).
    """
    moved: dict[int, int] = {}
    for change in changes:
        # Inherited messages come before all own messages, so the change moves the totals of all of these.
        from_seq = change.seq if change.conversation_id == conversation_id else 0
        moved[from_seq] = moved.get(from_seq, 0) + change.tokens_delta
    return [(from_seq, delta) for from_seq, delta in sorted(moved.items()) if delta]


def adapt_append_to_redactions(write: LogAppend, stored: Conversation) -> LogAppend:
    """Adapts an append to the stored conversation: if earlier messages were redacted after the write was prepared,
    correct its running totals and drop client versions of these messages.
    """
    shift = stored.head_tokens_total - write.tokens_before
    versions = drop_redacted_versions(write, stored)
    if not shift and len(versions) == len(write.versions):
        return write
    after = write.conversation
    return replace(
        write,
        versions=versions,
        conversation=replace(after, head_tokens_total=after.head_tokens_total + shift),
        messages=[replace(message, tokens_total=message.tokens_total + shift) for message in write.messages],
    )


def drop_redacted_versions(write: LogAppend, stored: Conversation) -> Sequence[ClientVersion]:
    """Returns the client versions of an append that cover no redacted message."""
    redacted = stored.redacted_seqs
    if not redacted:
        return write.versions
    return [one for one in write.versions if not any(one.seq <= seq < one.to_seq for seq in redacted)]


def sum_token_deltas(changes: Iterable[MessageRedaction]) -> int:
    return sum(change.tokens_delta for change in changes)


def update_marks_for_redactions(marks: Mapping[str, Any], changes: Iterable[MessageRedaction]) -> dict[str, Any]:
    """Returns a conversation's marks with the changed seqs added to the redacted ones, and with the pins' new token
    counts.
    """
    changed = {change.seq: change.tokens_delta for change in changes}
    pins = {PINS_KEY: [_update_pin_tokens(pin, changed) for pin in marks[PINS_KEY]]} if PINS_KEY in marks else {}
    return {**marks, **pins, REDACTED_KEY: sorted({*marks.get(REDACTED_KEY, ()), *changed})}


def _update_pin_tokens(pin: Mapping[str, Any], deltas_by_seq: Mapping[int, int]) -> dict[str, Any]:
    moved = sum(delta for seq, delta in deltas_by_seq.items() if pin["from_seq"] <= seq < pin["to_seq"])
    return {**pin, "tokens": pin["tokens"] + moved} if moved else dict(pin)


def covers_redacted_message(
    summary: Summary, readers: Iterable[str], changes_by_conversation: RedactionsByConversation
) -> bool:
    """Whether a summary covers a changed message in the log of any of its readers."""
    changes = (change for reader in readers for change in changes_by_conversation.get(reader, ()))
    return any(summary.from_seq <= change.seq < summary.to_seq for change in changes)


def compute_summary_total_shift(
    summary: Summary, readers: Iterable[str], changes_by_conversation: RedactionsByConversation
) -> int:
    """Returns by how much a summary's running total moves: the changes before its range, in the log of its first reader
    that has changes.
    """
    # One reader is enough: all readers share the log before the summary, with the same changes.
    changes = next((changes_by_conversation[reader] for reader in readers if reader in changes_by_conversation), ())
    return sum_token_deltas(change for change in changes if change.seq < summary.from_seq)
