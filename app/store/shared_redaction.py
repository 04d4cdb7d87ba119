"""What becomes of a family of branches when messages that they share are overwritten. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.messages import Chunk, ClientVersion, Conversation
from app.store.contract import Append
from app.store.sql.rows import Lineage

PINS: Final = "pins"
"""`Conversation.marks`: stretches of the log that are pinned, with their tokens."""
REDACTED: Final = "redacted"
"""`Conversation.marks`: the seqs of messages that were overwritten, ascending."""


class Change(msgspec.Struct, frozen=True):
    """A message that is overwritten, in the rows of `keeper`; `delta` tokens are added to its count."""

    keeper: str
    seq: int
    delta: int


Sharing = Mapping[str, Sequence[Change]]
"""The changes that each conversation's log shares, by its id; without those that share none."""


def sharing(changes: Sequence[Change], family: Mapping[str, Lineage]) -> Sharing:
    """Who shares what.

    Args:
        family: lineages by id; those that share nothing may be among them.
    """
    shared = {
        member: [change for change in changes if _shares(member, lineage, change)] for member, lineage in family.items()
    }
    return {member: found for member, found in shared.items() if found}


def _shares(member: str, lineage: Lineage, change: Change) -> bool:
    if member == change.keeper:
        return True
    return any(ancestor == change.keeper and change.seq <= upto_seq for ancestor, upto_seq in lineage)


def shifts(member: str, changes: Iterable[Change]) -> list[tuple[int, int]]:
    """By how much the running totals of a conversation's own messages move: (from this seq on, tokens)."""
    moved: dict[int, int] = {}
    for change in changes:
        # What it inherits stands before all of its own.
        from_seq = change.seq if change.keeper == member else 0
        moved[from_seq] = moved.get(from_seq, 0) + change.delta
    return [(from_seq, delta) for from_seq, delta in sorted(moved.items()) if delta]


def total_before(write: Append) -> int:
    """The running total at which an append's messages begin."""
    if not write.messages:
        return write.conversation.head_tokens_total
    first = write.messages[0]
    return first.tokens_total - first.tokens


def beginning_at(write: Append, stored: Conversation) -> Append:
    """An append as it is done to the conversation that is stored: where messages before it were redacted while it was
    prepared, its running totals begin at another, and it stores no version of those messages."""
    shift = stored.head_tokens_total - total_before(write)
    versions = kept_versions(write, stored)
    if not shift and len(versions) == len(write.versions):
        return write
    after = write.conversation
    return replace(
        write,
        versions=versions,
        conversation=replace(after, head_tokens_total=after.head_tokens_total + shift),
        messages=[replace(message, tokens_total=message.tokens_total + shift) for message in write.messages],
    )


def kept_versions(write: Append, stored: Conversation) -> Sequence[ClientVersion]:
    """The versions of an append that stand for no message which was redacted."""
    redacted = stored.redacted
    if not redacted:
        return write.versions
    return [one for one in write.versions if not any(one.seq <= seq < one.to_seq for seq in redacted)]


def total(changes: Iterable[Change]) -> int:
    return sum(change.delta for change in changes)


def marked(marks: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """A conversation's marks with the seqs of the changes among the redacted, and pins as long as their messages are
    now."""
    changed = {change.seq: change.delta for change in changes}
    pins = {PINS: [_counted(pin, changed) for pin in marks[PINS]]} if PINS in marks else {}
    return {**marks, **pins, REDACTED: sorted({*marks.get(REDACTED, ()), *changed})}


def _counted(pin: Mapping[str, Any], changed: Mapping[int, int]) -> dict[str, Any]:
    moved = sum(delta for seq, delta in changed.items() if pin["from_seq"] <= seq < pin["to_seq"])
    return {**pin, "tokens": pin["tokens"] + moved} if moved else dict(pin)


def covers(chunk: Chunk, readers: Iterable[str], shared: Sharing) -> bool:
    """Whether a chunk stands for a changed message in the log of any of its readers."""
    changes = (change for reader in readers for change in shared.get(reader, ()))
    return any(chunk.from_seq <= change.seq < chunk.to_seq for change in changes)


def shift_of(chunk: Chunk, readers: Iterable[str], shared: Sharing) -> int:
    """By how much the running total of a chunk moves, being behind changed messages in the log of a reader."""
    changes = next((shared[reader] for reader in readers if reader in shared), ())
    return total(change for change in changes if change.seq < chunk.from_seq)
