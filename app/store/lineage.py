"""Computes which rows hold the parts of a log, and how the lineages of a family change when a conversation is erased.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.conversation.conversation_types import (
    SHARED_THROUGH,
    Conversation,
    LogMessage,
    select_relatives,
)
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
class FamilyMember:
    """What says which rows a conversation shares, and with whom."""

    id: str
    lineage: Lineage
    marks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared_through(self) -> int:
        """As `Conversation.shared_through`."""
        return int(self.marks.get(SHARED_THROUGH, -1))

    @property
    def family_id(self) -> str:
        """As `Conversation.family_id`."""
        return next((ancestor for ancestor, _ in select_relatives(self.lineage, self.shared_through)), self.id)


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """How a conversation is erased while the conversations that share its rows stay complete.

    Messages after `kept_through` are deleted. Those before, which others share, become the `heir`'s own, and every
    other lineage that named the erased conversation names the heir instead.
    """

    heir: str | None = None
    kept_through: int = -1
    inherited_through: int = -1
    """The heir also gets what belongs to the messages through this one: fingerprints, anchors, client versions, stored
    completions and summaries. -1 if the heir merely shares the rows: these are of the erased conversation's people."""
    changed: Sequence[FamilyMember] = ()
    """The conversations whose lineage changes, and perhaps their marks."""

    @property
    def is_heir_relative(self) -> bool:
        return self.inherited_through >= 0


def plan_erasure(conversation_id: str, members: Iterable[FamilyMember]) -> ErasurePlan:
    """Plans the erasure of a conversation.

    The heir is the conversation that shares most of the log: its own messages follow the shared ones without a gap, so
    it can take them over. At equal seqs a real branch comes before one that merely shares the rows.

    docs/decisions/0050, rule 1: an answer has one owner. If the heir merely shares the rows, it is no relative of the
    erased conversation's branches, so they must become its mere sharers. A wrong plan would let one person's
    fingerprints prove another's conversation, or delete somebody's branch with it.

    Args:
        members: conversations of the family; those that do not name the conversation are ignored.
    """
    sharers = [one for one in members if any(ancestor == conversation_id for ancestor, _ in one.lineage)]
    direct = [one for one in sharers if one.lineage[-1][0] == conversation_id]
    if not direct:
        return ErasurePlan()
    # The id breaks ties, so that every backend chooses the same heir.
    heir = max(direct, key=lambda one: (one.lineage[-1][1], one.shared_through < one.lineage[-1][1], one.id))
    kept_through = heir.lineage[-1][1]
    is_relative = heir.shared_through < kept_through
    changed = [_replace_erased_ancestor(one, conversation_id, heir.id, is_relative=is_relative) for one in sharers]
    return ErasurePlan(heir.id, kept_through, kept_through if is_relative else -1, changed)


def _replace_erased_ancestor(member: FamilyMember, erased_id: str, heir: str, *, is_relative: bool) -> FamilyMember:
    renamed = [(heir if ancestor == erased_id else ancestor, upto_seq) for ancestor, upto_seq in member.lineage]
    shared_through = dict(member.lineage)[erased_id]
    marks = member.marks
    if not is_relative and member.id != heir and shared_through > member.shared_through:
        marks = {**marks, SHARED_THROUGH: shared_through}
    return FamilyMember(member.id, _merge_heir_entries(renamed, member.id, heir), marks)


def _merge_heir_entries(lineage: Sequence[tuple[str, int]], conversation_id: str, heir: str) -> Lineage:
    """Returns a lineage without the entries of the heir that another of its entries follows: it has these rows, too.
    Its own id must not stand among its ancestors."""
    followers = [ancestor for ancestor, _ in lineage[1:]] + [conversation_id]
    return tuple(entry for entry, follower in zip(lineage, followers, strict=True) if not entry[0] == heir == follower)


@dataclass(frozen=True, slots=True)
class RowCopies:
    """Which conversations take copies of rows, so that others can redact theirs."""

    copies: Sequence[tuple[str, Lineage]] = ()
    """The conversations, in order, each with the path to the rows that it copies: all that it shared so far."""
    changed: Sequence[FamilyMember] = ()
    """The conversations whose lineage changes."""


def plan_row_copies(redacting_id: str, owner_id: str, seq: int, members: Sequence[FamilyMember]) -> RowCopies:
    """Plans the copies that are made before a message is redacted, so that only one family loses it.

    If the family of the redacting conversation owns the row, the others take copies; else that family does.

    docs/decisions/0050: who merely shares the row said the same, and did not delete it. A wrong plan would erase
    somebody's message for another, or leave a redacted message readable in the family that redacted it.

    Args:
        owner_id: the conversation whose rows have the message.
        members: all conversations that name the owner, and the owner.
    """
    current = {one.id: one for one in members}
    family_id = current[redacting_id].family_id
    tops = [one for one in members if one.family_id == one.id and _has_row(one, owner_id, seq)]
    owned = current[owner_id].family_id == family_id
    # The family's rows must be copied last: who shares them takes copies of the original before.
    copiers = [one for one in tops if one.id != family_id and (owned or family_id in dict(one.lineage))]
    copiers.sort(key=lambda one: (len(one.lineage), -one.lineage[-1][1], one.id))
    copiers += [] if owned else [current[family_id]]
    copies: list[tuple[str, Lineage]] = []
    for one in copiers:
        lineage = current[one.id].lineage
        if not _has_row(current[one.id], owner_id, seq):
            continue  # it follows a conversation that took copies
        base = next((copier for copier, path in copies if one.id != family_id and _begins_with(path, lineage)), None)
        if base is None:
            copies.append((one.id, lineage))
        _replace_path(current, one.id, () if base is None else ((base, lineage[-1][1]),))
    return RowCopies(copies, [current[one.id] for one in members if current[one.id] is not one])


def _has_row(member: FamilyMember, owner_id: str, seq: int) -> bool:
    return seq <= dict(member.lineage).get(owner_id, -1)


def _begins_with(path: Lineage, lineage: Lineage) -> bool:
    """Returns whether a path holds all that a lineage shares, in the same rows."""
    *before, (last_id, upto_seq) = lineage
    rest = path[len(before) :]
    return path[: len(before)] == tuple(before) and bool(rest) and rest[0][0] == last_id and upto_seq <= rest[0][1]


def _replace_path(members: dict[str, FamilyMember], conversation_id: str, lineage: Lineage) -> None:
    """Replaces the lineage of a conversation, and with it the beginning of the lineages that lead through it."""
    for member in members.values():
        ancestors = [ancestor for ancestor, _ in member.lineage]
        if member.id == conversation_id:
            members[member.id] = replace(member, lineage=lineage)
        elif conversation_id in ancestors:
            own = member.lineage[ancestors.index(conversation_id) :]
            members[member.id] = replace(member, lineage=(*lineage, *own))


def order_links_deepest_first(links: Sequence[bytes]) -> list[bytes]:
    """Returns the links of a request, deepest first, each once. A message that the chain skips repeats the link before
    it.
    """
    return list(dict.fromkeys(reversed(links)))
