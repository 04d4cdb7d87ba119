"""The log as its client shows it: the original messages, with the client's versions in place of those that the client
changed. Pure.

A plan is made for what is sent, so its tokens are those of the versions. The log, its summaries and stored views count
the originals. `recount_…_for_versions` methods turn stored numbers into those of a plan; `recount_…_for_originals`
methods do the reverse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import TypeVar

from msgspec.structs import replace

from app.context.plan.outline import Boundary, LastView, Pin
from app.context.view.message_edits import select_whole_edits
from app.conversation.conversation_types import ClientVersion, LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES
from app.dialects.item_decoding import decode_item

Placed = TypeVar("Placed", Summary, Boundary)
MIN_VOLATILE_VERSIONS = 3
"""A message that the client has shown in so many other ways changes with each request."""


class ClientVersions:
    """The client's current version of each message that the client shows differently from the log."""

    def __init__(
        self,
        versions: Mapping[int, ClientVersion],
        hashes: Mapping[int, frozenset[int]] = MappingProxyType({}),
        last_shown: Mapping[int, ClientVersion] = MappingProxyType({}),
    ) -> None:
        """Args:
        versions: by the seq of the message; none whose `bodies` is None.
        hashes: by the seq of the message, the hashes of all that the client has shown there.
        last_shown: of messages that the client changed and then left out, the last version that it showed.
        """
        self._by_seq = versions
        self._hashes = hashes
        self._last_shown = last_shown

    def with_later_versions(
        self, later_versions: Iterable[ClientVersion], redacted: Iterable[int] = ()
    ) -> ClientVersions:
        """Returns these versions, each replaced by a later one if there is one.

        Args:
            later_versions: as `ConversationStore.read_client_versions` returns them, oldest first.
            redacted: messages that were deleted or erased: no client version of them is shown.
        """
        found, hashes, last_shown = dict(self._by_seq), dict(self._hashes), dict(self._last_shown)
        for version in later_versions:
            if version.bodies:
                hashes[version.seq] = hashes.get(version.seq, frozenset()) | {hash(version.bodies)}
            if version.bodies != ():
                last_shown.pop(version.seq, None)
            elif (previous := found.get(version.seq)) is not None and previous.bodies:
                last_shown[version.seq] = previous
            # The client shows the original again.
            if version.bodies is None:
                found.pop(version.seq, None)
            else:
                found[version.seq] = version
        gone = set(redacted)
        if gone:
            # A version may stand for several messages. If one of them was erased, the version may hold its text.
            found = {seq: one for seq, one in found.items() if gone.isdisjoint(range(one.seq, one.to_seq))}
            last_shown = {seq: one for seq, one in last_shown.items() if gone.isdisjoint(range(one.seq, one.to_seq))}
        return ClientVersions(found, hashes, last_shown) if found or hashes else NO_VERSIONS

    def __len__(self) -> int:
        return len(self._by_seq)

    def __iter__(self) -> Iterator[int]:
        """Yields the seqs of the messages that the client shows differently."""
        return iter(self._by_seq)

    def __contains__(self, seq: int) -> bool:
        return seq in self._by_seq

    def get(self, seq: int) -> ClientVersion | None:
        return self._by_seq.get(seq)

    def find_last_shown(self, seq: int) -> ClientVersion | None:
        """Returns the version in which the client showed a message last, before it left the message out."""
        version = self._by_seq.get(seq)
        return self._last_shown.get(seq) if version is not None and not version.bodies else version

    def list_bodies(self, seq: int, original: bytes) -> Sequence[bytes]:
        """Returns the JSON texts that the client shows in place of a message; none if the client left the
        message out.
        """
        version = self._by_seq.get(seq)
        return (original,) if version is None or version.bodies is None else version.bodies

    def is_omitted(self, seq: int) -> bool:
        """Says whether the client left a message out."""
        version = self._by_seq.get(seq)
        return version is not None and not version.bodies

    def is_volatile(self, seq: int) -> bool:
        """Says whether the client shows a message differently with each request, such as one with the time in it."""
        version = self._by_seq.get(seq)
        is_single = version is not None and bool(version.bodies) and version.to_seq == seq + 1
        return is_single and len(self._hashes.get(seq, ())) >= MIN_VOLATILE_VERSIONS

    def find_quotable_body(self, seq: int, original: bytes) -> bytes:
        """Returns the JSON text of a message in the words that are quoted: the client's, but the log's if the client
        shortened a tool result or stands a summary of its own in the message's place.
        """
        version = self.find_last_shown(seq)
        if version is None or not version.bodies or version.to_seq > seq + 1:
            return original
        body = version.bodies[-1]
        return original if decode_item(body).role in TOOL_RESULT_ROLES else body

    @property
    def size_bytes(self) -> int:
        """Returns the size of all bodies together."""
        return sum([len(body) for version in self._by_seq.values() for body in version.bodies or ()])

    @property
    def tokens_delta(self) -> int:
        """Returns the tokens of the log as the client shows it, less those of the originals."""
        return self._cumulative_deltas[-1] if self._cumulative_deltas else 0

    def count_tokens_delta_before(self, seq: int) -> int:
        """Returns the same difference for the log before `seq`."""
        position = bisect_left(self._changed_seqs, seq)
        return self._cumulative_deltas[position - 1] if position else 0

    @cached_property
    def _changed_seqs(self) -> list[int]:
        return sorted(self._by_seq)

    @cached_property
    def _cumulative_deltas(self) -> list[int]:
        return list(accumulate(self._by_seq[seq].tokens_delta for seq in self._changed_seqs))

    def apply_to_log_messages(self, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        """Returns log messages as they are sent. A message that the client left out stays in its place, with
        no tokens.
        """
        return [self._apply_to_log_message(entry) for entry in entries] if self._by_seq else entries

    def _apply_to_log_message(self, entry: LogMessage) -> LogMessage:
        total = entry.tokens_total + self.count_tokens_delta_before(entry.seq + 1)
        version = self._by_seq.get(entry.seq)
        if version is None:
            return replace(entry, tokens_total=total)
        message = decode_item(version.bodies[-1]) if version.bodies else entry.message
        return replace(entry, message=message, tokens=entry.tokens + version.tokens_delta, tokens_total=total)

    def recount_summary_for_versions(self, summary: Summary) -> Summary:
        return self._shift_tokens(summary, 1) if self._by_seq else summary

    def recount_summary_for_originals(self, summary: Summary) -> Summary:
        return self._shift_tokens(summary, -1) if self._by_seq else summary

    def recount_boundary_for_originals(self, boundary: Boundary) -> Boundary:
        return self._shift_tokens(boundary, -1) if self._by_seq else boundary

    def recount_view_for_versions(self, view: LastView, changed: Iterable[int] = ()) -> LastView:
        """Returns the stored last view with the numbers of a plan.

        Args:
            changed: messages that the client shows differently since that view: edits of them are dropped.
        """
        if not self._by_seq:
            return view
        gone = set(changed)
        edits = select_whole_edits(view.edits, lambda seq: seq not in gone and not self.is_omitted(seq))
        return replace(view, boundary=self._shift_tokens(view.boundary, 1), edits=edits)

    def recount_view_for_originals(self, view: LastView) -> LastView:
        return replace(view, boundary=self._shift_tokens(view.boundary, -1)) if self._by_seq else view

    def recount_pin_for_versions(self, pin: Pin) -> Pin:
        delta = self.count_tokens_delta_before(pin.to_seq) - self.count_tokens_delta_before(pin.from_seq)
        return replace(pin, tokens=pin.tokens + delta) if delta else pin

    def _shift_tokens(self, position: Placed, sign: int) -> Placed:
        """Returns a place in the log with its tokens counted for the versions (`sign` 1) or for the originals (−1)."""
        anchor = None if position.anchor_seq is None else self._by_seq.get(position.anchor_seq)
        return replace(
            position,
            tokens_total=position.tokens_total + sign * self.count_tokens_delta_before(position.to_seq),
            anchor_tokens=position.anchor_tokens + (0 if anchor is None else sign * anchor.tokens_delta),
        )


NO_VERSIONS = ClientVersions({})
"""With all stored versions of a conversation as later ones, these are its current ones."""
