"""The store contract. One method is one step of a turn, so that a backend can make it one round trip.

Every method takes the tenant or a root derived from it (`conversation.identity`), and each key is led by the root: on a
distributed PostgreSQL each statement stays on one shard. Driver errors leave this room as `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from app.conversation.messages import Chunk, Conversation, LogMessage

MAX_MATCHES: Final = 8
"""The most matches of each kind that `Store.find` returns."""
NEAR_LINKS: Final = 2
"""A match among this many last links settles a search: nothing shallower is looked for."""
WINDOW_LINKS: Final = 128
"""How many of the deepest links are looked for before the others."""


class HeadMoved(Exception):
    """Somebody else appended first: the log no longer ends where the write expected it to."""


class LeaseLost(Exception):
    """The lease that was to fence a write has expired or been taken over; nothing was written."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on `(root, key)`. `token` grows with every claim, so a late write of a former holder is refused."""

    root: str
    key: str
    holder: str
    token: int


class Match(msgspec.Struct, frozen=True):
    """A stored message that a request's chain reached."""

    conversation: Conversation
    """The conversation that keeps the message in its own rows."""
    message: LogMessage
    by_skeleton: bool


class Found(msgspec.Struct, frozen=True):
    """A message that a search found."""

    message: LogMessage
    score: float | None
    """The inverse document frequencies of the asked terms it holds, summed; None of a neighbour that came along."""


class Append(msgspec.Struct, frozen=True):
    """Messages to add to a log, all or none.

    `conversation` is the conversation as it will stand after the write: its head fields describe the last of
    `messages`, its state, mode and chunk_count replace what is stored. `creates` says that it does not exist yet.
    Without messages only those fields change.
    """

    conversation: Conversation
    after_seq: int
    messages: Sequence[LogMessage]
    creates: bool = False
    fence: Lease | None = None
    releases: bool = False
    """Release the fence's lease together with the write."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What `/readyz` and the start line say of a store."""

    backend: str
    schema_version: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Store(Protocol):
    """Where conversations are kept.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def open(self) -> None:
        """Connect and check the schema; called once."""

    async def close(self) -> None:
        """Finish what is queued, then disconnect."""

    async def check(self) -> StoreInfo:
        """A cheap round trip that proves the store answers."""

    async def find(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        within: str | None = None,
    ) -> list[Match]:
        """The deepest stored messages that the chain reaches, at most 8 by link and 8 by skeleton, deepest first.

        Only messages with `answered` count, except those of conversation `within` (or of its lineage), which the
        client named itself. Where several conversations keep the same link, those whose head it is come first, then
        the most recently updated. Skeleton matches are messages with `in_skeleton`.
        `links` and `skeletons` may hold thousands; order is that of the request.

        Where the last link or the one before it is kept (with `within`: there), that settles it and only its keepers
        are returned. Otherwise the deepest `WINDOW_LINKS` are looked for first, and the others only if no such link is
        kept; skeletons likewise.
        """

    async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        """The conversation with this id of ours, or with this `external_id`."""

    async def look_up(self, conversation_id: str) -> Conversation | None:
        """The conversation with this id of ours, whoever owns it: for operators at the machine, never for a request."""

    async def point(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        """Make a client's own id mean this conversation from now on (a branch took the lead)."""

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        """Log messages `[from_seq, to_seq)` in order, through the lineage."""

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Make messages of a conversation's log findable by their terms (`conversation.terms`). Again changes nothing;
        what is not stored, or no longer, is passed over."""

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """Indexed messages `[from_seq, before_seq)` of a conversation's log, through its lineage, that hold any of
        `terms`: the best `limit`, then the messages beside them in that range, by seq.

        Best is whose terms are rarest in the range, at equal scores the later. Nothing outside the conversation's own
        log has a say. One round trip.
        """

    async def append(self, write: Append) -> None:
        """Add messages to the end of a log and update its conversation.

        Raises:
            HeadMoved: the log does not end at `after_seq`; or the conversation to create, or one for the client's
                own id, exists; or the one it branches from is gone. Nothing was written.
            LeaseLost: the fence is no longer held; nothing was written.
        """

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        """Erase a conversation's row, own messages and their index, chunks made in it, leases and the client's ids for
        it. Messages that a branch still shares, and chunks that end at one, pass to that branch. Whether there was
        one."""

    async def chunks(
        self, *, root: str, path: Sequence[tuple[str, int]] = (), links: Sequence[bytes] = ()
    ) -> list[Chunk]:
        """Chunks whose end is a message on `path` (matched by link) or one of `links`, by `to_seq` then creation."""

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        """Keep a chunk. For the same range and kind of range (fold or not) there is only ever one: a second is ignored,
        except that a model's summary replaces a mechanical one.

        Raises:
            LeaseLost: the fence is no longer held; nothing was written.
        """

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        """Claim `(root, key)` if it is free or expired; None while another holder has it."""

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases; returns those that are lost."""

    async def release_lease(self, lease: Lease) -> None:
        """Give a lease back; silently nothing if it was lost."""

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        """What was learned of each `provider/model`: window, calibration seed."""

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        """Merge facts into those of a `provider/model`."""
