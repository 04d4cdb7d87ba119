"""Where a log is kept: its stretches over ancestors, and what becomes of them when one is erased. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.conversation.messages import Conversation, LogMessage
from app.store.sql.rows import Lineage


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Log messages `[from_seq, to_seq)`, kept in the rows of `conversation_id`."""

    conversation_id: str
    from_seq: int
    to_seq: int


def find_segments(path: Sequence[tuple[str, int]], from_seq: int, to_seq: int) -> list[LogSegment]:
    """The part of a path that holds log messages `[from_seq, to_seq)`, in order, without empty stretches."""
    found = []
    start = from_seq
    for conversation_id, upto_seq in path:
        end = min(upto_seq + 1, to_seq)
        if start < end:
            found.append(LogSegment(conversation_id, start, end))
            start = end
    return found


def find_range_segments(path: Sequence[tuple[str, int]], ranges: Iterable[tuple[int, int]]) -> list[LogSegment]:
    """The parts of a path that hold log messages of these ranges."""
    return [stretch for from_seq, to_seq in ranges for stretch in find_segments(path, max(from_seq, 0), to_seq)]


def locate_messages(path: Sequence[tuple[str, int]], entries: Sequence[LogMessage]) -> list[tuple[str, LogMessage]]:
    """Messages of a log, each with the id of the conversation that keeps it; not those beyond the path's end."""
    located = []
    for entry in entries:
        place = next((conversation_id for conversation_id, upto_seq in path if entry.seq <= upto_seq), None)
        if place is not None:
            located.append((place, entry))
    return located


def count_range_messages(conversation: Conversation, from_seq: int, to_seq: int) -> int:
    """How many messages a range of a log holds."""
    return max(0, min(to_seq, conversation.head_seq + 1) - max(from_seq, 0))


def clip_ranges(conversation: Conversation, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What ranges hold of a conversation's log."""
    return [(from_seq, min(to_seq, conversation.head_seq + 1)) for from_seq, to_seq in ranges]


def first_own_seq(conversation: Conversation) -> int:
    """The seq of the first message that a conversation keeps in its own rows, if it has any."""
    return conversation.lineage[-1][1] + 1 if conversation.lineage else 0


def find_leading_range(entries: Sequence[LogMessage]) -> tuple[int, int]:
    """The range that the first of some messages make up without a gap; (0, 0) of none."""
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
    """How a conversation is erased while its branches stay whole.

    Its messages after `kept_through` go. Those before, which branches share, become the `heir`'s own, and every
    other lineage that named the erased conversation names the heir.
    """

    heir: str | None = None
    kept_through: int = -1
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    """New lineages by conversation id."""


def plan_erasure(conversation_id: str, lineages: Mapping[str, Lineage]) -> ErasurePlan:
    """Plan the erasure of a conversation.

    Args:
        lineages: lineages by id; those that do not name the conversation are left alone.

    The heir is the branch off this very conversation that shares most of it: its own messages follow the shared ones
    without a gap, so it can take them over.
    """
    branches = {
        branch: lineage[-1][1] for branch, lineage in lineages.items() if lineage and lineage[-1][0] == conversation_id
    }
    if not branches:
        return ErasurePlan()
    heir = max(branches, key=lambda branch: (branches[branch], branch))
    changed = {
        member: _hand_over_lineage(member, lineage, conversation_id, heir)
        for member, lineage in lineages.items()
        if any(ancestor == conversation_id for ancestor, _ in lineage)
    }
    return ErasurePlan(heir, branches[heir], changed)


def _hand_over_lineage(conversation_id: str, lineage: Lineage, erased_id: str, heir: str) -> Lineage:
    renamed = [(heir if ancestor == erased_id else ancestor, upto_seq) for ancestor, upto_seq in lineage]
    followers = [ancestor for ancestor, _ in renamed[1:]] + [conversation_id]
    return tuple(entry for entry, follower in zip(renamed, followers, strict=True) if not entry[0] == heir == follower)


def order_deepest_first(links: Sequence[bytes]) -> list[bytes]:
    """Links of a request without repeats, which messages that the chain looks through leave."""
    return list(dict.fromkeys(reversed(links)))
