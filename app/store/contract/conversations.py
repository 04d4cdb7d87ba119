"""The contract for conversations with their messages, and for what is stored beside a message: search index, anchors,
client versions, completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from app.conversation.conversation_types import (
    AnswerAnchor,
    AnswerProof,
    ClientVersion,
    Conversation,
    HistoryMode,
    IssuedAnswer,
    LogMessage,
    StoredCompletion,
    Summary,
)
from app.store.contract.leases import Lease

PendingAppend = Coroutine[Any, Any, None] | asyncio.Future[None]
MAX_LINK_MATCHES: Final = 8
"""The most matches that `ConversationStore.find_link_matches` returns."""
MAX_ANCHORS: Final = 8
"""The most anchors of one digest that `ConversationStore.find_anchors` returns."""
LAST_LINKS: Final = 2
"""If one of this many last links matches, `ConversationStore.find_link_matches` looks for no other link."""
DEEPEST_LINKS: Final = 128
"""`ConversationStore.find_link_matches` looks for this many of the deepest links before it looks for the others."""


class WriteConflict(Exception):
    """Another writer was first: the stored rows are not those that the write expects. Nothing was written."""


class LinkMatch(msgspec.Struct, frozen=True):
    """A stored message whose link is in a request's chain."""

    conversation: Conversation
    """The conversation whose own rows hold the message."""
    message: LogMessage


class SearchHit(msgspec.Struct, frozen=True):
    """A message that a search returns."""

    message: LogMessage
    score: float | None
    """The sum of the inverse document frequencies of the query's terms in the message; None for a neighbour of a match.
    """


class MessageVectors(msgspec.Struct, frozen=True):
    """What the passages of a message mean, as `context.quote.meaning` encodes it."""

    seq: int
    link: bytes
    """The message's link."""
    vectors: bytes


class LogAppend(msgspec.Struct, frozen=True):
    """Messages to add to a log, all or none.

    `conversation` is the conversation after the write. Its head fields describe the last of `messages`; its state, mode
    and chunk_count replace the stored ones. Its marks are stored only with `creates_conversation`, which says that the
    conversation does not exist yet. Without messages, a write changes only those fields. If an earlier message was
    redacted after the write was prepared, the store corrects the running totals of tokens.
    """

    conversation: Conversation
    after_seq: int
    messages: Sequence[LogMessage]
    creates_conversation: bool = False
    fence: Lease | None = None
    releases_lease: bool = False
    """Whether the write also releases the lease of the fence."""
    versions: Sequence[ClientVersion] = ()
    """The client's versions of log messages, from this turn on. The store skips a version of a message that was
    redacted after the write was prepared.
    """
    issued: IssuedAnswer | None = None
    """The answer among `messages` that this gateway gave. Its fingerprints are stored in the same transaction."""
    anchors: Sequence[AnswerAnchor] = ()
    """Stored in the same transaction (`ConversationStore.add_anchors`)."""

    @property
    def tokens_before(self) -> int:
        """The running total of tokens before the first message."""
        if not self.messages:
            return self.conversation.head_tokens_total
        first = self.messages[0]
        return first.tokens_total - first.tokens


class ConversationQuery(msgspec.Struct, frozen=True):
    """Selects a page of a tenant's conversations. Times are compared with microseconds."""

    limit: int
    descending: bool = True
    """True: newest first."""
    order_by: Literal["created_at", "updated_at"] = "created_at"
    """The time by which conversations are ordered; those of one moment by id."""
    after: tuple[datetime, str] | None = None
    """The time of `order_by`, and the id, of the last conversation of the page before."""
    min_messages: int | None = None
    model: str | None = None
    """Selects conversations with a stored request (`RequestStore`) for this model, or answered by it. If there are
    further filters by requests, one and the same request must be like that."""
    context_status: str | None = None
    """Filters by requests, too."""
    key_id: str | None = None
    """Filters by requests, too."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Pairs that a conversation's metadata must have, all of them."""
    mode: HistoryMode | None = None
    """How the conversation's client sends messages."""
    external_id: str | None = None
    """The client's own id of the conversation."""
    ancestor_id: str | None = None
    """The gateway's id of a conversation: selects only that conversation and its branches, direct and indirect."""
    has_own_messages: bool = False
    """True: leaves out conversations without an id of the client's all of whose messages are shared."""
    is_context_only: bool = False
    """True: selects only conversations that are kept for continuing (`api_keys.is_context_tenant`)."""
    excludes_context_tenants: bool = False
    """True: leaves them out."""
    with_derived_tenants: bool = False
    """True: selects conversations of tenants derived from the tenant, too (`api_keys.belongs_to_tenant`)."""


class CompletionQuery(msgspec.Struct, frozen=True):
    """Selects a page of a tenant's stored completions."""

    limit: int
    descending: bool = False
    after: tuple[datetime, str] | None = None
    model: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    with_responses: bool = True
    """False: selects no responses, only chat completions."""


class ConversationHit(msgspec.Struct, frozen=True):
    """A conversation that a search over all of a tenant's conversations returns, with its best message."""

    conversation: Conversation
    message: LogMessage
    score: float
    """As `SearchHit.score`, but the frequency of a term is counted over the tenant's conversations."""


class ConversationStore(Protocol):
    """Keeps conversations and their messages.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    @property
    def is_fully_searchable(self) -> bool:
        """Whether every stored message can be indexed and searched. False for an encrypted store: `index_messages`
        skips its messages.
        """

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        named_conversation_id: str | None = None,
        with_unanswered: bool = False,
    ) -> list[LinkMatch]:
        """Finds the deepest stored messages on the request's chain: at most `MAX_LINK_MATCHES`, deepest first.

        Only messages with `answered` count, unless `with_unanswered`. Messages of the log of `named_conversation_id`,
        which the client named itself, count without it. If several conversations keep the same link, those whose head
        it is come first, then the most recently updated. `links` may hold thousands, in the order of the request.

        If the last link or the one before it is stored (with `named_conversation_id`: in that log), only the messages
        with that link are returned. Otherwise the deepest `DEEPEST_LINKS` are looked for first, and the others only if
        none of these is stored.
        """

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        """Returns the conversation with this id of the gateway, or with this `external_id`."""

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        """Returns the conversation with this id of the gateway, whichever tenant owns it. For operators at the machine,
        never for a request.
        """

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        """Returns a page of a tenant's conversations. Without a tenant: of all tenants, for operators at the machine
        only.
        """

    def append(self, write: LogAppend) -> PendingAppend:
        """Adds messages to the end of a log and updates its conversation. If the result is a future, the write has
        begun and ends even if no task waits for it.

        Raises:
            WriteConflict: the log does not end at `after_seq`; or the conversation to create exists; or a conversation
                for the client's own id exists; or the conversation that it branches from is gone. Nothing was written.
            LeaseLost: the lease of the fence is lost; nothing was written.
        """

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        """Makes a client's own id name this conversation from now on. Used when a branch replaces the conversation that
        the id named.
        """

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        """Replaces a conversation's metadata. Returns the conversation after the change, None if there is none.
        `updated_at` stays: it is the time of the newest message.
        """

    async def replace_marks(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        """Replaces a conversation's `marks`.

        Raises:
            WriteConflict: the conversation is gone, or its stored marks differ from those of `conversation`. Nothing
                was written.
        """

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        """Reads the log messages `[from_seq, to_seq)` in order, including those in rows of ancestors."""

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        """Reads several ranges of a log in one round trip. The ranges are in order and do not overlap."""

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        """Reads the client's versions of log messages, including those in rows of ancestors, by `since_seq`, then
        `seq`. A later version replaces an earlier one.

        Args:
            until_seq: returns only versions whose `since_seq` is at most this; None: all.
        """

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        """Stores anchors, by which conversations are found. An anchor that is stored already is not stored again."""

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        """Returns the stored anchors with these digests, at most `MAX_ANCHORS` for each digest, newest first."""

    async def issue_answer(self, issued: IssuedAnswer) -> None:
        """Stores the fingerprints of an answer that no write stores, as `LogAppend.issued` does.

        For each fingerprint: if it was never issued, it gets the answer's place (without a conversation: none, and is
        spent). If it was issued at a place of the same owner, nothing changes. Otherwise it is spent for good. A spent
        fingerprint is not written again.
        """

    async def find_proofs(self, *, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
        """Returns the issued ones of these fingerprints, in any order, in one round trip."""

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Indexes messages of a conversation's log by their terms (`conversation.search_terms`), for searches in this
        log and over all of the tenant's conversations. Indexing a message again changes nothing. Messages that are not
        stored, or are redacted, are skipped. If the messages begin at `indexed_before` and are stored, `indexed_before`
        moves to their end.
        """

    async def clear_search_index(self) -> None:
        """Deletes the index of all tenants: every conversation must be indexed anew."""

    async def add_vectors(self, conversation: Conversation, *, model: str, vectors: Sequence[MessageVectors]) -> None:
        """Stores vectors of messages of a conversation's log, in the place of those by the same model. Messages that
        are not stored, or are redacted, are skipped. A message's vectors are erased with it."""

    async def read_vectors(
        self, conversation: Conversation, *, model: str, from_seq: int, before_seq: int
    ) -> list[MessageVectors]:
        """Returns the vectors by a model of the messages `[from_seq, before_seq)` of a conversation's log, including
        those in rows of ancestors, in order. Messages without vectors are left out."""

    async def clear_vectors(self) -> None:
        """Deletes the vectors of all tenants. They are made anew when a question needs them."""

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """Searches the indexed messages `[from_seq, before_seq)` of a conversation's log, including those in rows of
        ancestors, for any of `terms`. Returns the best `limit` messages, then their neighbours in that range
        (`term_ranking.NEIGHBOUR_STEPS`), nearest first, then by seq.

        The best messages hold the terms that are rarest in the range; at equal scores the later message is better.
        Messages outside the conversation's own log have no effect. One round trip.
        """

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        """Returns the tenant's conversations whose indexed messages hold the rarest of `terms`, best first, each with
        its best message. At equal scores the most recently updated is first. Ranks like `search_log`, but over the
        conversations that hold any term. A message counts for the conversation whose own rows hold it, so a message
        that branches share is found once.
        """

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        """Erases a conversation's row, its own messages with their index, client versions and anchors, summaries made
        in it, the places of its fingerprints (the fingerprints stay, and are spent), leases, the client's ids for it,
        and its stored completions. The leases include those of all summaries of the family: what is being made of the
        erased words cannot be stored afterwards.

        Messages that a branch still shares pass to that branch, with all rows that belong to them and with the
        summaries that end at one of them. If the conversation that shares most merely shares the rows
        (`Conversation.shared_through`), only the messages and their index pass to it: it is another's. The branches of
        the erased conversation then merely share them with it. Summaries of the erased conversation stay while a log
        has their last message, except personal ones (`Summary.is_personal`).

        Summaries of the family that were made for a conversation that does not exist, and that end at a message in no
        log, are erased, too.

        Returns:
            Whether the conversation existed.
        """

    async def add_tombstone(self, *, root: str, family_id: str) -> None:
        """Notes that words of a conversation or of its branches are erased now (`Conversation.family_id`). Capsules
        of them, which clients keep, give no content from then on."""

    async def find_tombstone(self, *, root: str, family_id: str) -> datetime | None:
        """Returns when words of a conversation or of its branches were erased last; None: never."""

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        """Overwrites bodies, tokens and meta of messages of a conversation's log, for good. Links stay. The old text is
        overwritten and removed from the search index. Conversations that merely share a redacted message
        (`Conversation.shared_through`) keep it: they get copies of the rows that they share with the family of the
        conversation, or that family gets them. All in one transaction, for every conversation of the family that has a
        redacted message:

        - `tokens_total` of the messages that follow moves by the difference in tokens; so do `head_tokens_total`, and
          `tokens_total` of summaries that begin later;
        - summaries that cover a redacted message are deleted with all their revisions;
        - `marks["redacted"]`, a sorted list, gets the seq;
        - `tokens` of each pin in `marks["pins"]` that covers the message moves by the difference;
        - client versions of the message, client summaries that cover it, and its anchors are deleted;
        - fingerprints with its place are spent;
        - leases for making summaries in the root (`SUMMARY_LEASE_PREFIXES`) are deleted: a summary that is being made
          from the old text must not be stored.

        Returns:
            The deleted summaries, by `to_seq`.

        Raises:
            WriteConflict: a message is not, or no longer, in the conversation's log.
        """

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        """Stores the same values in another form (encrypted with another key): bodies and meta of the conversation's
        *own* messages and versions, its `state`, and the texts of the given revisions of summaries. Nothing else
        changes. Rows that are gone are skipped, and so are messages that were redacted after `conversation` was read or
        whose tokens have changed. `state` is written only if the stored head is the conversation's.
        """

    async def save_completion(self, completion: StoredCompletion) -> None:
        """Stores a completion. It replaces one with the same id of the same tenant. Does nothing if its conversation is
        gone."""

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        """Returns a page of a tenant's stored completions, by creation time, then by id."""

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        """Returns a stored completion."""

    async def replace_completion_metadata(
        self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]
    ) -> bool:
        """Replaces a stored completion's metadata. Returns whether the completion exists."""

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        """Deletes a stored completion; its conversation stays. Returns whether the completion existed."""
