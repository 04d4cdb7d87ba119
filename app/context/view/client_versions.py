"""The log as its client shows it: originals, with the client's versions in the places of those that it changed. Pure.

A plan is made for what is sent, so its tokens are those of the versions; the log, its summaries and what is stored of
views count the originals. `project` functions go from the stored numbers to those of a plan, `restore` functions back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

from msgspec.structs import replace

from app.context.plan.outline import Boundary, LastView, Pin
from app.conversation.messages import ClientVersion, LogMessage, Message, Summary

Placed = TypeVar("Placed", Summary, Boundary)


class ClientVersions:
    """The current version of each message that a client shows otherwise than it was first said."""

    def __init__(self, versions: Mapping[int, ClientVersion]) -> None:
        """
        Args:
            versions: by the seq of the message; none whose `bodies` is None.
        """
        self._by_seq = versions

    @classmethod
    def from_stored(cls, stored: Iterable[ClientVersion], redacted: Iterable[int] = ()) -> ClientVersions:
        """The current versions of a conversation.

        Args:
            stored: as `Store.versions` gives them, oldest first.
            redacted: messages that were deleted or erased: nothing of the client's is shown there.
        """
        return NO_VERSIONS.with_later_versions(stored, redacted)

    def with_later_versions(
        self, later_versions: Iterable[ClientVersion], redacted: Iterable[int] = ()
    ) -> ClientVersions:
        """These versions with later ones in their places."""
        found = dict(self._by_seq)
        for version in later_versions:
            if version.bodies is None:
                found.pop(version.seq, None)
            else:
                found[version.seq] = version
        gone = set(redacted)
        if gone:
            found = {seq: one for seq, one in found.items() if gone.isdisjoint(range(one.seq, one.to_seq))}
        return ClientVersions(found) if found else NO_VERSIONS

    def __len__(self) -> int:
        return len(self._by_seq)

    def __iter__(self) -> Iterator[int]:
        """The seqs of the messages that the client shows otherwise."""
        return iter(self._by_seq)

    def list_changed_seqs_after(self, seq: int) -> Sequence[int]:
        """Those of them that stand behind a message."""
        return self._changed_seqs[bisect_right(self._changed_seqs, seq) :]

    def __contains__(self, seq: int) -> bool:
        return seq in self._by_seq

    def get(self, seq: int) -> ClientVersion | None:
        return self._by_seq.get(seq)

    def list_bodies(self, seq: int, original: bytes) -> Sequence[bytes]:
        """JSON text of what the client shows in the place of a message: nothing where it left the message out."""
        version = self._by_seq.get(seq)
        return (original,) if version is None or version.bodies is None else version.bodies

    def is_omitted(self, seq: int) -> bool:
        """Whether the client left a message out."""
        version = self._by_seq.get(seq)
        return version is not None and not version.bodies

    @property
    def size_bytes(self) -> int:
        """Of all bodies together."""
        return sum([len(body) for version in self._by_seq.values() for body in version.bodies or ()])

    @property
    def tokens_delta(self) -> int:
        """Tokens that the client shows less those of the log."""
        return self._cumulative_deltas[-1] if self._cumulative_deltas else 0

    def count_tokens_delta_before(self, seq: int) -> int:
        """The same of the log before `seq`."""
        place = bisect_left(self._changed_seqs, seq)
        return self._cumulative_deltas[place - 1] if place else 0

    @cached_property
    def _changed_seqs(self) -> list[int]:
        return sorted(self._by_seq)

    @cached_property
    def _cumulative_deltas(self) -> list[int]:
        return list(accumulate(self._by_seq[seq].tokens_delta for seq in self._changed_seqs))

    def project_entries(self, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        """Log messages as they are sent. One that the client left out stays in its place, with no tokens."""
        return [self._project_entry(entry) for entry in entries] if self._by_seq else entries

    def _project_entry(self, entry: LogMessage) -> LogMessage:
        total = entry.tokens_total + self.count_tokens_delta_before(entry.seq + 1)
        version = self._by_seq.get(entry.seq)
        if version is None:
            return replace(entry, tokens_total=total)
        message = Message(version.bodies[-1]) if version.bodies else entry.message
        return replace(entry, message=message, tokens=entry.tokens + version.tokens_delta, tokens_total=total)

    def project_summary(self, summary: Summary) -> Summary:
        return self._shift_tokens(summary, 1) if self._by_seq else summary

    def restore_summary(self, summary: Summary) -> Summary:
        return self._shift_tokens(summary, -1) if self._by_seq else summary

    def restore_boundary(self, boundary: Boundary) -> Boundary:
        return self._shift_tokens(boundary, -1) if self._by_seq else boundary

    def project_view(self, view: LastView, changed: Iterable[int] = ()) -> LastView:
        """What is kept of the last view.

        Args:
            changed: messages that the client shows otherwise than in that view: what was edited of them is not.
        """
        if not self._by_seq:
            return view
        gone = set(changed)
        edits = tuple(edit for edit in view.edits if edit.seq not in gone and not self.is_omitted(edit.seq))
        return replace(view, boundary=self._shift_tokens(view.boundary, 1), edits=edits)

    def restore_view(self, view: LastView) -> LastView:
        return replace(view, boundary=self._shift_tokens(view.boundary, -1)) if self._by_seq else view

    def project_pin(self, pin: Pin) -> Pin:
        delta = self.count_tokens_delta_before(pin.to_seq) - self.count_tokens_delta_before(pin.from_seq)
        return replace(pin, tokens=pin.tokens + delta) if delta else pin

    def _shift_tokens(self, place: Placed, sign: int) -> Placed:
        """A place in the log with its tokens counted as the client shows them (1), or as they were said (-1)."""
        anchor = None if place.anchor_seq is None else self._by_seq.get(place.anchor_seq)
        return replace(
            place,
            tokens_total=place.tokens_total + sign * self.count_tokens_delta_before(place.to_seq),
            anchor_tokens=place.anchor_tokens + (0 if anchor is None else sign * anchor.tokens_delta),
        )


NO_VERSIONS = ClientVersions({})
