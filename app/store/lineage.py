"""Computes which rows hold the parts of a log, and how the lineages of a family change when a conversation is erased.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.conversation.conversation_types import MAX_SEQ, AnswerProof, Conversation, IssuedAnswer, LogMessage
from app.store.sql.rows import Lineage


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Log messages `[from_seq, to_seq)` in the rows of `conversation_id`."""

    conversation_id: str
    from_seq: int
    to_seq: int


def find_segments(path: Sequence[tuple[str, int]], from_seq: int, to_seq: int) -> list[LogSegment]:
    """Returns the segments of a path that hold the log messages `[from_seq, to_seq)`, in order, without empty ones.

    Args:
        path: conversation ids, each with the last seq of its part of the log (`Conversation.lineage_with_self`).
    """
    found = []
    start = from_seq
    for conversation_id, upto_seq in path:
        end = min(upto_seq + 1, to_seq)
        if start < end:
            found.append(LogSegment(conversation_id, start, end))
            start = end
    return found


def find_range_segments(path: Sequence[tuple[str, int]], ranges: Iterable[tuple[int, int]]) -> list[LogSegment]:
    """Returns the segments of a path that hold the log messages of these ranges."""
    return [stretch for from_seq, to_seq in ranges for stretch in find_segments(path, max(from_seq, 0), to_seq)]


def locate_messages(path: Sequence[tuple[str, int]], entries: Sequence[LogMessage]) -> list[tuple[str, LogMessage]]:
    """Returns the messages of a log, each with the id of the conversation whose rows hold it. Messages after the path's
    end are left out.
    """
    located = []
    for entry in entries:
        owner_id = next((conversation_id for conversation_id, upto_seq in path if entry.seq <= upto_seq), None)
        if owner_id is not None:
            located.append((owner_id, entry))
    return located


def count_range_messages(conversation: Conversation, from_seq: int, to_seq: int) -> int:
    """Returns how many messages of the log are in a range."""
    return max(0, min(to_seq, conversation.head_seq + 1) - max(from_seq, 0))


def clip_ranges_to_log(conversation: Conversation, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges, each cut off at the end of the log."""
    return [(from_seq, min(to_seq, conversation.head_seq + 1)) for from_seq, to_seq in ranges]


def first_own_seq(conversation: Conversation) -> int:
    """Returns the first seq that a conversation's own rows can hold: the one after the last shared message."""
    return conversation.lineage[-1][1] + 1 if conversation.lineage else 0


def list_owner_places(issued: IssuedAnswer) -> Lineage:
    """Returns the places whose answers have the same owner as an issued answer: (conversation id, first seq that has
    not)."""
    own = () if issued.conversation_id is None else ((issued.conversation_id, MAX_SEQ),)
    return (*issued.owner_lineage, *own)


def build_proof(fingerprint: bytes, conversation: Conversation | None, seq: int | None) -> AnswerProof:
    """Builds the proof of an issued fingerprint. An answer that was deleted or erased proves nothing: its conversation
    must not be found by the words that were removed from it."""
    if conversation is None or seq is None or seq in conversation.redacted_seqs:
        return AnswerProof(fingerprint, None, -1)
    return AnswerProof(fingerprint, conversation, seq)


def find_gapless_leading_range(entries: Sequence[LogMessage]) -> tuple[int, int]:
    """Returns the range of the leading messages that follow each other without a gap; (0, 0) without messages."""
    if not entries:
        return 0, 0
    start = end = entries[0].seq
    for entry in entries:
        if entry.seq != end:
            break
        end += 1
    return start, end


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """How a conversation is erased while its branches stay complete.

    Messages after `kept_through` are deleted. Those before, which branches share, become the `heir`'s own, and every
    other lineage that named the erased conversation names the heir instead.
    """

    heir: str | None = None
    kept_through: int = -1
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    """The changed lineages by conversation id."""


def plan_erasure(conversation_id: str, lineages: Mapping[str, Lineage]) -> ErasurePlan:
    """Plans the erasure of a conversation.

    The heir is the direct branch that shares most of the log: its own messages follow the shared ones without a gap, so
    it can take them over.

    Args:
        lineages: lineages by id; those that do not name the conversation are ignored.
    """
    branches = {
        branch: lineage[-1][1] for branch, lineage in lineages.items() if lineage and lineage[-1][0] == conversation_id
    }
    if not branches:
        return ErasurePlan()
    # The id breaks ties, so that every backend chooses the same heir.
    heir = max(branches, key=lambda branch: (branches[branch], branch))
    changed = {
        member: _replace_erased_ancestor(member, lineage, conversation_id, heir)
        for member, lineage in lineages.items()
        if any(ancestor == conversation_id for ancestor, _ in lineage)
    }
    return ErasurePlan(heir, branches[heir], changed)


def _replace_erased_ancestor(conversation_id: str, lineage: Lineage, erased_id: str, heir: str) -> Lineage:
    renamed = [(heir if ancestor == erased_id else ancestor, upto_seq) for ancestor, upto_seq in lineage]
    followers = [ancestor for ancestor, _ in renamed[1:]] + [conversation_id]
    # The heir now owns what it shared: its own id must not stand among its ancestors.
    return tuple(entry for entry, follower in zip(renamed, followers, strict=True) if not entry[0] == heir == follower)


def order_links_deepest_first(links: Sequence[bytes]) -> list[bytes]:
    """Returns the links of a request, deepest first, each once. A message that does not advance the skeleton repeats
    the skeleton before it.
    """
    return list(dict.fromkeys(reversed(links)))
