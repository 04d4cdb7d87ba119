"""Standing requests of a conversation: where they are in the log, which of them still hold, and which a view shows.

A standing request is a sentence in which the user sets a rule, a preference, a name or a prohibition. Only its place is
kept, never its text. Tokens are raw counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec.structs import replace

MAX_KEPT_REQUESTS: Final = 64
"""How many standing requests of a conversation are kept."""


class StandingRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sentence `[start, end)` in the text of the user message `seq`."""

    seq: int
    start: int
    end: int
    tokens: int
    """Tokens of its line in a view."""
    strength: int = 1
    """3: a prohibition or an allergy. 2: a rule or a name. 1: a preference."""
    replaced_by: int | None = None
    """The message with the first later request that replaces this one."""

    @property
    def place(self) -> tuple[int, int]:
        return self.seq, self.start


class NewRequest(msgspec.Struct, frozen=True):
    """A request with what is needed to compare it to others. None of that is stored."""

    request: StandingRequest
    subject: frozenset[str]
    """What the sentence is about (`request_finder`)."""
    withdraws: bool = False
    """Whether the sentence only takes an earlier request back."""


class StandingRequests(msgspec.Struct, frozen=True):
    """The standing requests that a view may show, in the order of the log."""

    requests: tuple[StandingRequest, ...] = ()
    frame_tokens: int = 0
    """Tokens of the message that shows standing requests, without its lines."""
    room_tokens: int = 0
    """The most tokens that the message may take."""

    def choose_before(self, boundary_seq: int, shown_seqs: AbstractSet[int]) -> tuple[StandingRequest, ...]:
        """Returns the requests for a view whose verbatim part begins at `boundary_seq`, in the order of the log.

        Requests in messages from the boundary on have no effect, so the choice stays the same until the boundary moves.
        If not all fit, the strongest are chosen; of equally strong ones, the newest.

        Args:
            shown_seqs: the messages from before the boundary that the view shows anyway.
        """
        chosen: list[StandingRequest] = []
        remaining_tokens = self.room_tokens - self.frame_tokens
        for one in sorted(self.requests, key=lambda one: (one.strength, one.place), reverse=True):
            is_replaced = one.replaced_by is not None and one.replaced_by < boundary_seq
            if one.seq >= boundary_seq or one.seq in shown_seqs or is_replaced or one.tokens > remaining_tokens:
                continue
            remaining_tokens -= one.tokens
            chosen.append(one)
        return tuple(sorted(chosen, key=lambda one: one.place))

    def count_tokens(self, chosen: Sequence[StandingRequest]) -> int:
        """Returns the tokens of the message that shows these requests."""
        return self.frame_tokens + sum(one.tokens for one in chosen) if chosen else 0


NO_STANDING_REQUESTS: Final = StandingRequests()


def add_new_requests(known: Iterable[NewRequest], found: Iterable[NewRequest]) -> tuple[StandingRequest, ...]:
    """Returns known and newly found requests in the order of the log, at most `MAX_KEPT_REQUESTS`.

    A request replaces an earlier one if it speaks of everything that the earlier one speaks of. If in doubt, both
    stand: a view shows them in order, and the later one counts. A withdrawal is kept only if its subject touches that
    of an earlier request.

    Args:
        known: the requests of earlier messages, those that are replaced included.
        found: the requests of later messages, in the order of the log.
    """
    kept = list(known)
    for new in found:
        in_force = [one for one in kept if one.request.replaced_by is None]
        if new.withdraws and all(new.subject.isdisjoint(one.subject) for one in in_force):
            continue
        replaced = {one.request.place for one in in_force if one.subject and new.subject >= one.subject}
        kept = [
            replace(one, request=replace(one.request, replaced_by=new.request.seq))
            if one.request.place in replaced
            else one
            for one in kept
        ]
        kept.append(new)
    # Replaced requests are given up first, the oldest first; then the weakest, the oldest first.
    ranked = sorted(
        (one.request for one in kept),
        key=lambda one: (one.replaced_by is None, one.strength, one.place),
        reverse=True,
    )
    return tuple(sorted(ranked[:MAX_KEPT_REQUESTS], key=lambda one: one.place))


def drop_requests(
    requests: Iterable[StandingRequest], *, gone_seqs: AbstractSet[int], removed_places: AbstractSet[tuple[int, int]]
) -> tuple[StandingRequest, ...]:
    """Returns the requests without those of messages that are gone, and without those that were removed. A request that
    a message replaced which is gone holds again."""
    return tuple(
        replace(one, replaced_by=None) if one.replaced_by in gone_seqs else one
        for one in requests
        if one.seq not in gone_seqs and one.place not in removed_places
    )


class StandingScan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored with a conversation: which messages were scanned, and what was found in them."""

    before_seq: int = 0
    """Messages before this seq were scanned."""
    requests: tuple[StandingRequest, ...] = ()


NOTHING_SCANNED: Final = StandingScan()


def limit_scan_to_log(scan: StandingScan, last_seq: int) -> StandingScan:
    """Limits a scan to a log that ends with `last_seq`: a branch may be shorter than its parent."""
    requests = tuple(
        replace(one, replaced_by=None) if one.replaced_by is not None and one.replaced_by > last_seq else one
        for one in scan.requests
        if one.seq <= last_seq
    )
    return StandingScan(min(scan.before_seq, last_seq + 1), requests)
