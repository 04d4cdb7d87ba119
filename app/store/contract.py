"""The store contract: what each backend must do. One method is one step of a turn, so that a backend can run it in one
round trip.

Every method takes the tenant, or a root that is derived from the tenant (`conversation.identity`). Every key begins
with the root, so on a distributed PostgreSQL each statement stays on one shard. Backends translate driver errors to
`StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from app.conversation.api_keys import ApiKey
from app.conversation.conversation_types import (
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
"""The most matches of each kind (by link, by skeleton) that `Store.find_link_matches` returns."""
MAX_ANCHORS: Final = 8
"""The most anchors of one digest that `Store.find_anchors` returns."""
LAST_LINKS: Final = 2
"""If one of this many last links matches, `Store.find_link_matches` looks for no other link."""
SUMMARY_LEASE_PREFIXES: Final = ("range:", "fold:")
"""The keys of leases for making a summary begin with one of these."""
DEEPEST_LINKS: Final = 128
"""`Store.find_link_matches` looks for this many of the deepest links before it looks for the others."""


class WriteConflict(Exception):
    """Another writer was first: the stored rows are not those that the write expects. Nothing was written."""


class LeaseLost(Exception):
    """The lease that fences a write has expired, or another holder has it. Nothing was written."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on `(root, key)`. `token` grows with every claim, so the store refuses late writes of former holders."""

    root: str
    key: str
    holder: str
    token: int


class LinkMatch(msgspec.Struct, frozen=True):
    """A stored message whose link or skeleton is in a request's chain."""

    conversation: Conversation
    """The conversation whose own rows hold the message."""
    message: LogMessage
    by_skeleton: bool


class SearchHit(msgspec.Struct, frozen=True):
    """A message that a search returns."""

    message: LogMessage
    score: float | None
    """The sum of the inverse document frequencies of the query's terms in the message; None for a neighbour of a match.
    """


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


class ConversationQuery(msgspec.Struct, frozen=True):
    """Selects a page of a tenant's conversations. Times are compared with microseconds."""

    limit: int
    descending: bool = True
    """True: newest first. The order is by creation time, then by id."""
    after: tuple[datetime, str] | None = None
    """Creation time and id of the last conversation of the page before."""
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


class CompletionQuery(msgspec.Struct, frozen=True):
    """Selects a page of a tenant's stored completions."""

    limit: int
    descending: bool = False
    after: tuple[datetime, str] | None = None
    model: str | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)


class ConversationHit(msgspec.Struct, frozen=True):
    """A conversation that a search over all of a tenant's conversations returns, with its best message."""

    conversation: Conversation
    message: LogMessage
    score: float
    """As `SearchHit.score`, but the frequency of a term is counted over the tenant's conversations."""


class IdempotencyKeyRecord(msgspec.Struct, frozen=True):
    """The state of a client's `Idempotency-Key`."""

    state: Literal["claimed", "running", "done", "differs"]
    """`claimed` by this call; `running` in another request; `done`: the answer is message `seq` of the conversation;
    `differs`: the key belongs to a request with another body.
    """
    conversation_id: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The facts about a store that `/readyz` and the start line show."""

    backend: str
    schema_version: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Store(Protocol):
    """Keeps conversations.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    @property
    def is_fully_searchable(self) -> bool:
        """Whether every stored message can be indexed and searched. False for an encrypted store: `index_messages`
        skips its messages.
        """

    async def open(self) -> None:
        """Connects and checks the schema; called once."""

    async def close(self) -> None:
        """Finishes queued work, then disconnects."""

    async def check(self) -> StoreInfo:
        """Makes a cheap round trip that proves that the store answers."""

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named_conversation_id: str | None = None,
    ) -> list[LinkMatch]:
        """Finds the deepest stored messages on the request's chain: at most 8 by link and 8 by skeleton, deepest first.

        Only messages with `answered` count. Messages of the log of `named_conversation_id`, which the client named
        itself, count without it. If several conversations keep the same link, those whose head it is come first, then
        the most recently updated. Skeleton matches are messages with `in_skeleton`. `links` and `skeletons` may hold
        thousands, in the order of the request.

        If the last link or the one before it is stored (with `named_conversation_id`: in that log), only the messages
        with that link are returned. Otherwise the deepest `DEEPEST_LINKS` are looked for first, and the others only if
        none of these is stored; the same applies to skeletons.
        """

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        """Returns the conversation with this id of the gateway, or with this `external_id`."""

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        """Returns the conversation with this id of the gateway, whichever tenant owns it. For operators at the machine,
        never for a request.
        """

    async def assign_external_id(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        """Makes a client's own id name this conversation from now on. Used when a branch replaces the conversation that
        the id named.
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

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Indexes messages of a conversation's log by their terms (`conversation.search_terms`), for searches in this
        log and over all of the tenant's conversations. Indexing a message again changes nothing. Messages that are not
        stored, or are redacted, are skipped. If the messages begin at `indexed_before` and are stored, `indexed_before`
        moves to their end.
        """

    async def clear_search_index(self) -> None:
        """Deletes the index of all tenants: every conversation must be indexed anew."""

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """Searches the indexed messages `[from_seq, before_seq)` of a conversation's log, including those in rows of
        ancestors, for any of `terms`. Returns the best `limit` messages, then their neighbours in that range, by seq.

        The best messages hold the terms that are rarest in the range; at equal scores the later message is better.
        Messages outside the conversation's own log have no effect. One round trip.
        """

    def append(self, write: LogAppend) -> PendingAppend:
        """Adds messages to the end of a log and updates its conversation. If the result is a future, the write has
        begun and ends even if no task waits for it.

        Raises:
            WriteConflict: the log does not end at `after_seq`; or the conversation to create exists; or a conversation
                for the client's own id exists; or the conversation that it branches from is gone. Nothing was written.
            LeaseLost: the lease of the fence is lost; nothing was written.
        """

    async def erase_conversation(self, *, tenant: str, conversation_id: str) -> bool:
        """Erases a conversation's row, its own messages with their index, client versions and anchors, summaries made
        in it, leases, the client's ids for it, and its stored completions.

        Messages that a branch still shares pass to that branch, with all rows that belong to them and with the
        summaries that end at one of them. Summaries of the family that were made for a conversation that does not
        exist, and that end at a message in no log, are erased, too.

        Returns:
            Whether the conversation existed.
        """

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
        """Returns a tenant's summaries whose last message is on `path` (matched by link) or has one of `links`, by
        `to_seq`, then creation.

        Args:
            from_link: of the summaries on `path`, returns only those that begin after the message with this link. The
                work of the query then does not grow with the log.
            with_texts: False: texts are empty, and the query reads none of them.
        """

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        """Stores a summary. There is at most one for the same range and kind of range (fold or not): a second one is
        ignored, except that a summary by a model or a person replaces a mechanical summary or a part summary. If both
        have the same id, the old text is kept as a revision, and the new one gets the next revision number.

        Raises:
            LeaseLost: the lease of the fence is lost; nothing was written.
        """

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        """Claims `(root, key)` if it is free, expired or already `holder`'s; None while another holder has it."""

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extends leases. Returns those that are lost."""

    async def release_lease(self, lease: Lease) -> None:
        """Releases a lease. Does nothing if it was lost."""

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        """Returns a page of a tenant's conversations. Without a tenant: of all tenants, for operators at the machine
        only.
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

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        """Overwrites bodies, tokens and meta of messages of a conversation's log, for good. Links stay. The old text is
        overwritten and removed from the search index. All in one transaction, for every conversation that shares a
        redacted message:

        - `tokens_total` of the messages that follow moves by the difference in tokens; so do `head_tokens_total`, and
          `tokens_total` of summaries that begin later;
        - summaries that cover a redacted message are deleted with all their revisions;
        - `marks["redacted"]`, a sorted list, gets the seq;
        - `tokens` of each pin in `marks["pins"]` that covers the message moves by the difference;
        - client versions of the message, client summaries that cover it, and its anchors are deleted;
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

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        """Gives a summary another text. `summary` has the same id and range and the next `revision`; the old text is
        kept among the revisions. The other fields (range, links, folds, the conversation it was made in) stay.

        Raises:
            WriteConflict: the summary is gone, or its stored revision is not the one before `summary.revision`.
        """

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        """Returns all texts that a summary has had, oldest first, the present one last; empty if there is no such
        summary.
        """

    async def delete_summary(self, *, tenant: str, root: str, summary_id: str) -> bool:
        """Deletes a summary with its revisions, and every summary that folds it, directly or through others. Returns
        whether it existed.
        """

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        """Returns the tenant's conversations whose indexed messages hold the rarest of `terms`, best first, each with
        its best message. At equal scores the most recently updated is first. Ranks like `search_log`, but over the
        conversations that hold any term. A message counts for the conversation whose own rows hold it, so a message
        that branches share is found once.
        """

    async def save_completion(self, completion: StoredCompletion) -> None:
        """Stores a completion. It replaces one with the same id of the same tenant."""

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

    async def claim_idempotency_key(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> IdempotencyKeyRecord:
        """Claims an `Idempotency-Key` for a request whose body has this digest. The same holder renews its claim by
        claiming again.

        Args:
            seconds: the claim ends after this time unless it is completed or released.
            kept_seconds: a completed claim is deleted after this time.
        """

    async def complete_idempotency_key(
        self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int
    ) -> None:
        """Records the answer of the claimed request: message `seq` of the conversation."""

    async def release_idempotency_key(self, *, tenant: str, key: str, holder: str) -> None:
        """Releases the key of a request that got no answer, so that the next request can claim it."""

    async def add_api_key(self, key: ApiKey) -> None:
        """Stores an API key."""

    async def find_api_key(self, digest: str) -> ApiKey | None:
        """Returns the API key with this digest, valid or not."""

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        """Returns API keys, oldest first; without a tenant those of all tenants."""

    async def revoke_api_key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        """Ends a key's validity now. Returns the key after the change, None if there is none. Revoking again changes
        nothing.
        """

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        """Returns a secret that all processes share: the stored one; if there is none, `proposed` is stored and
        returned.
        """

    async def purge_idempotency_keys(self) -> int:
        """Deletes expired idempotency keys. Returns how many."""

    async def purge_stray_summaries(self, *, created_before: datetime) -> int:
        """Deletes stray summaries, with their revisions and the summaries that fold them. A stray summary was made
        before `created_before` for a conversation that does not exist, and ends at a message that is in no log, so no
        other erasure reaches it. Returns how many strays were found.
        """

    async def scrub_deleted_data(self) -> None:
        """Rewrites the database's file without the remains of deleted and overwritten rows. Only SQLite needs this. It
        may take as long as copying the file, and writers wait meanwhile.
        """

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        """Returns what the gateway learned about each `provider/model`: window, calibration seed."""

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        """Merges facts into the stored facts of a `provider/model`."""
