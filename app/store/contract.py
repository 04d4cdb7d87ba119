"""The store contract. One method is one step of a turn, so that a backend can make it one round trip.

Every method takes the tenant or a root derived from it (`conversation.identity`), and each key is led by the root: on a
distributed PostgreSQL each statement stays on one shard. Driver errors leave this room as `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from app.conversation.api_keys import ApiKey
from app.conversation.messages import (
    AnswerAnchor,
    ClientVersion,
    Conversation,
    HistoryMode,
    LogMessage,
    StoredCompletion,
    Summary,
)

PendingAppend = Coroutine[Any, Any, None] | asyncio.Future[None]
MAX_LINK_MATCHES: Final = 8
"""The most matches of each kind that `Store.find` returns."""
MAX_ANCHORS: Final = 8
"""The most anchors of one digest that `Store.find_anchors` returns."""
LAST_LINKS: Final = 2
"""A match among this many last links settles a search: nothing shallower is looked for."""
SUMMARY_LEASE_PREFIXES: Final = ("range:", "fold:")
"""How the keys of leases begin under which summaries are made."""
DEEPEST_LINKS: Final = 128
"""How many of the deepest links are looked for before the others."""


class WriteConflict(Exception):
    """Somebody else appended first: the log no longer ends where the write expected it to."""


class LeaseLost(Exception):
    """The lease that was to fence a write has expired or been taken over; nothing was written."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on `(root, key)`. `token` grows with every claim, so a late write of a former holder is refused."""

    root: str
    key: str
    holder: str
    token: int


class LinkMatch(msgspec.Struct, frozen=True):
    """A stored message that a request's chain reached."""

    conversation: Conversation
    """The conversation that keeps the message in its own rows."""
    message: LogMessage
    by_skeleton: bool


class SearchHit(msgspec.Struct, frozen=True):
    """A message that a search found."""

    message: LogMessage
    score: float | None
    """The inverse document frequencies of the asked terms it holds, summed; None of a neighbour that came along."""


class LogAppend(msgspec.Struct, frozen=True):
    """Messages to add to a log, all or none.

    `conversation` is the conversation as it will stand after the write: its head fields describe the last of
    `messages`, its state, mode and chunk_count replace what is stored; its marks do only
    where it `creates_conversation` it. `creates_conversation` says that it does not exist yet.
    Without messages only those fields change. Running totals of tokens move along if a message before was redacted
    since the write was prepared.
    """

    conversation: Conversation
    after_seq: int
    messages: Sequence[LogMessage]
    creates_conversation: bool = False
    fence: Lease | None = None
    releases_lease: bool = False
    """Release the fence's lease together with the write."""
    versions: Sequence[ClientVersion] = ()
    """What the client shows otherwise than the log has it, from this turn on. A version of a message that was redacted
    since the write was prepared is not stored."""


class ConversationQuery(msgspec.Struct, frozen=True):
    """Which conversations of a tenant are wanted, and from where on. Times are compared with microseconds."""

    limit: int
    descending: bool = True
    """Newest first, by creation, at equal times by id."""
    after: tuple[datetime, str] | None = None
    """Creation time and id of the last one seen."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Pairs that it must have, all of them."""
    mode: HistoryMode | None = None
    """How its client sends messages."""
    external_id: str | None = None
    """What its client calls it."""
    ancestor_id: str | None = None
    """Id of ours: only this conversation, and what branched from it or from a branch of it."""


class CompletionQuery(msgspec.Struct, frozen=True):
    """Which stored completions are wanted."""

    limit: int
    descending: bool = False
    after: tuple[datetime, str] | None = None
    model: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)


class ConversationHit(msgspec.Struct, frozen=True):
    """A conversation that a search over all of a tenant's found, with its best message."""

    conversation: Conversation
    message: LogMessage
    score: float
    """As `Found.score`, where a term's rarity is that among the tenant's conversations."""


class IdempotencyKeyRecord(msgspec.Struct, frozen=True):
    """What is known of a client's `Idempotency-Key`."""

    state: Literal["claimed", "running", "done", "differs"]
    """`claimed` by this call; `running` elsewhere; `done`, the answer being message `seq`; another body (`differs`)."""
    conversation_id: str | None = None
    seq: int | None = None


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

    @property
    def is_fully_searchable(self) -> bool:
        """Whether whatever is stored can be searched: nothing of it is hidden from `index`, which may be in vain
        otherwise."""

    async def open(self) -> None:
        """Connect and check the schema; called once."""

    async def close(self) -> None:
        """Finish what is queued, then disconnect."""

    async def check(self) -> StoreInfo:
        """A cheap round trip that proves the store answers."""

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named_conversation_id: str | None = None,
    ) -> list[LinkMatch]:
        """The deepest stored messages that the chain reaches, at most 8 by link and 8 by skeleton, deepest first.

        Only messages with `answered` count, except those of conversation `named_conversation_id` (or of its lineage),
        which the
        client named itself. Where several conversations keep the same link, those whose head it is come first, then
        the most recently updated. Skeleton matches are messages with `in_skeleton`.
        `links` and `skeletons` may hold thousands; order is that of the request.

        Where the last link or the one before it is kept (with `named_conversation_id`: there), that settles it and
        only its keepers
        are returned. Otherwise the deepest `DEEPEST_LINKS` are looked for first, and the others only if no such link is
        kept; skeletons likewise.
        """

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        """The conversation with this id of ours, or with this `external_id`."""

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        """The conversation with this id of ours, whoever owns it: for operators at the machine, never for a request."""

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        """Make a client's own id mean this conversation from now on (a branch took the lead)."""

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        """Log messages `[from_seq, to_seq)` in order, through the lineage."""

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        """The same of several ranges, which are in order and do not overlap. One round trip."""

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        """The client's versions of log messages, by `since_seq`, then `seq`, through the lineage. A later version takes
        the place of an earlier one.

        Args:
            until_seq: only those whose `since_seq` is at most this; None: all.
        """

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        """Make conversations findable by anchors. An anchor that is kept already is not kept twice."""

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        """The kept anchors with these digests, at most `MAX_ANCHORS` of each, the most recently kept first."""

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Make messages of a conversation's log findable by their terms (`conversation.search_terms`), in it and among
        all of the tenant's. Again changes nothing; what is not stored, or no longer, or redacted, is passed over. Where
        they follow on `indexed_before` and are stored, that moves to their end."""

    async def clear_search_index(self) -> None:
        """Make nothing findable any more, whoever it belongs to: every conversation is to be indexed anew."""

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """Indexed messages `[from_seq, before_seq)` of a conversation's log, through its lineage, that hold any of
        `terms`: the best `limit`, then the messages beside them in that range, by seq.

        Best is whose terms are rarest in the range, at equal scores the later. Nothing outside the conversation's own
        log has a say. One round trip.
        """

    def append(self, write: LogAppend) -> PendingAppend:
        """Add messages to the end of a log and update its conversation. A future is that of a write which has begun,
        and comes to its end even if nobody waits for it.

        Raises:
            HeadMoved: the log does not end at `after_seq`; or the conversation to create, or one for the client's
                own id, exists; or the one it branches from is gone. Nothing was written.
            LeaseLost: the fence is no longer held; nothing was written.
        """

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        """Erase a conversation's row, own messages with their index, versions and anchors, chunks made in it,
        leases and the client's ids for it, and its stored completions. Messages that a branch still shares,
        with what is kept of them, and chunks that end at one, pass to that branch. Chunks of the family go
        along that were made for a conversation that is not there, up to a message that is in no log. Whether
        there was one."""

    async def find_summaries(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        from_link: bytes | None = None,
        with_texts: bool = True,
    ) -> list[Summary]:
        """A tenant's chunks whose end is a message on `path` (matched by link) or one of `links`, by `to_seq` then
        creation. Where `with_texts` are not wanted they are empty: who only asks which chunks there are reads none.

        Args:
            from_link: of those on `path`, only the ones that begin behind the message with this link. What is read then
                does not grow with the log.
        """

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        """Keep a chunk. For the same range and kind of range (fold or not) there is only ever one: a second is
        ignored, except that a model's or a person's summary replaces a mechanical one, or a part that checkpoints
        read. If it has the same id, the text that it replaces is kept as a revision, and the new one's revision
        counts on from that.

        Raises:
            LeaseLost: the fence is no longer held; nothing was written.
        """

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        """Claim `(root, key)` if it is free or expired; None while another holder has it."""

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases; returns those that are lost."""

    async def release_lease(self, lease: Lease) -> None:
        """Give a lease back; silently nothing if it was lost."""

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        """A page of a tenant's conversations. Without a tenant everybody's: for operators at the machine only."""

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        """Replace a conversation's metadata; the conversation as it then is, None if there is none. `updated_at` tells
        of messages and stays."""

    async def replace_marks(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        """Replace a conversation's `marks`.

        Raises:
            HeadMoved: it is gone, or its stored marks are not those of `conversation` any more. Nothing was written.
        """

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        """Put other bodies, tokens and meta in the places of messages of a conversation's log, for good: links stay,
        what was there is overwritten, together with its place in the index of words. All in one transaction:

        - `tokens_total` of what follows, on every conversation that shares a place, moves by the difference; so do
          `head_tokens_total`, and `tokens_total` of chunks that begin behind it;
        - chunks that cover a place, with all their revisions, are deleted wherever a log that shares it reads them;
        - every conversation that shares a place has its seq in `marks["redacted"]`, a sorted list;
        - tokens of pins in `marks["pins"]` over a place move by the difference;
        - the client's versions of a place, and summaries of its own that cover one, are deleted, and so are anchors of
          the message;
        - leases on ranges of the root (`SUMMARY_LEASE_PREFIXES`) are ended: a summary in the making that has read what
        was there
          is not stored.

        Returns:
            The deleted chunks, by `to_seq`.

        Raises:
            HeadMoved: a place is not (or no longer) on the conversation's path.
        """

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        """Write the same things in another form (encrypted with another key): bodies and meta of the conversation's
        *own* messages and versions, its `state`, texts of chunks of that revision. Nothing else changes; what is gone
        is passed over, and so are messages that were redacted since `conversation` was read or whose tokens are others
        now. `state` is left alone if the stored head is not the conversation's."""

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        """Give a chunk another text: `summary` has the same id and range and the next `revision`; what it replaces is
        kept among the revisions. Its place (range, links, folds, the conversation it was made in) stays as it is.

        Raises:
            HeadMoved: it is gone, or its revision is not the one before `chunk.revision`.
        """

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        """All texts that a chunk has had, oldest first, the present one last; nothing if there is no such chunk."""

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        """Delete a chunk with its revisions, and every chunk that folds it (and so on). Whether there was one."""

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        """The tenant's conversations whose indexed messages hold the rarest of `terms`, best first, at equal scores
        the most recently updated, each with its best message. Ranked like `search`, over conversations that hold any
        term at all. Messages count for the conversation that keeps them: what branches share is found once."""

    async def save_completion(self, completion: StoredCompletion) -> None:
        """Keep a completion; one with the same id of the same tenant is replaced."""

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        """A page of a tenant's stored completions, by creation, at equal times by id."""

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        """A stored completion."""

    async def replace_completion_metadata(
        self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]
    ) -> bool:
        """Replace a stored completion's metadata. Whether there is one."""

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        """Forget a stored completion; its conversation stays. Whether there was one."""

    async def claim_idempotency_key(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> IdempotencyKeyRecord:
        """Claim an `Idempotency-Key` for a request whose body has this digest. A claim that was neither settled nor
        given up ends after `seconds`, a settled one is forgotten after `kept_seconds`. The same holder claims it
        again in order to renew it."""

    async def complete_idempotency_key(
        self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int
    ) -> None:
        """The claimed request was answered: message `seq` of the conversation."""

    async def release_idempotency_key(self, *, tenant: str, key: str, holder: str) -> None:
        """The claimed request got no answer: the next may claim its key."""

    async def add_api_key(self, key: ApiKey) -> None:
        """Keep an API key."""

    async def find_api_key(self, digest: str) -> ApiKey | None:
        """The API key with this digest, valid or not."""

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        """API keys, oldest first; of everybody without a tenant."""

    async def revoke_api_key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        """End a key's validity now; the key as it then is, None if there is none. Again changes nothing."""

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        """A secret that all processes share: the stored one, or `proposed`, which is stored then."""

    async def purge_idempotency_keys(self) -> int:
        """Forget idempotency keys whose time is over; how many."""

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        """Delete chunks, with their revisions and what folds them, that nothing would ever erase: made before then for
        a conversation that is not there, up to a message that is in no log. How many were found."""

    async def scrub_deleted_data(self) -> None:
        """Rewrite the database's file without what deleted and overwritten rows have left in it, where that is for us
        to do (SQLite). May take as long as copying the file, and keeps writers waiting."""

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        """What was learned of each `provider/model`: window, calibration seed."""

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        """Merge facts into those of a `provider/model`."""
