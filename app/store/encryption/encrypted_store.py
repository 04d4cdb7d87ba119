"""A store around another store that encrypts texts. `store.encryption.sealed_fields` says which,
`store.encryption.cipher` how.

While a key is active, no message is indexed, since hashes of words would reveal them. A search decrypts the newest
messages instead (`store.search.unindexed_search`). Rows that were written in plain text, or under another key, are
still readable; `store.encryption.reencryption` rewrites them. Without any key, this store only makes sure that
ciphertext is never taken for text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from app.conversation.conversation_types import (
    AnswerProof,
    ClientVersion,
    Conversation,
    LogMessage,
    StoredCompletion,
    Summary,
)
from app.store.contract.conversations import (
    CompletionQuery,
    ConversationHit,
    ConversationQuery,
    LinkMatch,
    LogAppend,
    PendingAppend,
    SearchHit,
)
from app.store.contract.leases import Lease
from app.store.contract.store import Store
from app.store.encryption.cipher import SEALED_PREFIX, Cipher
from app.store.encryption.sealed_fields import FieldSealer
from app.store.search.unindexed_search import UnindexedSearch

Source = TypeVar("Source")
Converted = TypeVar("Converted")

INLINE_LIMIT_BYTES: Final = 256 * 1024
"""More bytes than this are encrypted or decrypted in a thread; this many take half a millisecond."""
MESSAGE_OVERHEAD_BYTES: Final = 8 * 1024
"""The fixed cost of a message, in bytes that take as long."""


class EncryptedStore:
    """`Store` that passes all calls to an inner store, and encrypts what people and models wrote."""

    def __init__(self, inner: Store, cipher: Cipher) -> None:
        self.inner = inner
        self.sealer = FieldSealer(cipher)
        self._unindexed_search = UnindexedSearch(inner, self.sealer)
        # These have nothing to encrypt: a call goes straight to the inner store.
        self.open = inner.open
        self.close = inner.close
        self.check = inner.check
        self.assign_external_id = inner.assign_external_id
        self.add_anchors = inner.add_anchors
        self.find_anchors = inner.find_anchors
        self.issue_answer = inner.issue_answer
        self.clear_search_index = inner.clear_search_index
        self.erase_conversation = inner.erase_conversation
        self.claim_lease = inner.claim_lease
        self.renew_leases = inner.renew_leases
        self.release_lease = inner.release_lease
        self.replace_marks = inner.replace_marks
        self.delete_summary = inner.delete_summary
        self.replace_completion_metadata = inner.replace_completion_metadata
        self.delete_completion = inner.delete_completion
        self.claim_idempotency_key = inner.claim_idempotency_key
        self.complete_idempotency_key = inner.complete_idempotency_key
        self.release_idempotency_key = inner.release_idempotency_key
        self.add_api_key = inner.add_api_key
        self.find_api_key = inner.find_api_key
        self.list_api_keys = inner.list_api_keys
        self.revoke_api_key = inner.revoke_api_key
        self.set_api_key_budget = inner.set_api_key_budget
        self.ensure_server_secret = inner.ensure_server_secret
        self.purge_idempotency_keys = inner.purge_idempotency_keys
        self.purge_stray_summaries = inner.purge_stray_summaries
        self.scrub_deleted_data = inner.scrub_deleted_data
        self.read_model_facts = inner.read_model_facts
        self.merge_model_facts = inner.merge_model_facts
        self.add_usage = inner.add_usage
        self.sum_usage = inner.sum_usage
        self.read_key_cost = inner.read_key_cost
        self.purge_usage = inner.purge_usage
        self.reserve_budget = inner.reserve_budget
        self.read_budget_use = inner.read_budget_use
        self.release_reservations = inner.release_reservations
        self.renew_reservations = inner.renew_reservations
        self.count_call = inner.count_call
        self.correct_tokens = inner.correct_tokens
        self.purge_limits = inner.purge_limits

    @property
    def is_fully_searchable(self) -> bool:
        return not self.sealer.is_encrypting

    async def find_link_matches(
        self,
        *,
        tenant: str,
        root: str,
        links: Sequence[bytes],
        skeletons: Sequence[bytes],
        named_conversation_id: str | None = None,
        with_unanswered: bool = False,
    ) -> list[LinkMatch]:
        found = await self.inner.find_link_matches(
            tenant=tenant,
            root=root,
            links=links,
            skeletons=skeletons,
            named_conversation_id=named_conversation_id,
            with_unanswered=with_unanswered,
        )
        return await self._seal_or_unseal_all(
            found, self._unseal_match, estimate_decryption_bytes([match.message for match in found])
        )

    def _unseal_match(self, match: LinkMatch) -> LinkMatch:
        conversation = self.sealer.unseal_conversation_state(match.conversation)
        message = self.sealer.unseal_message(conversation.tenant, match.message)
        is_plain = conversation is match.conversation and message is match.message
        return match if is_plain else LinkMatch(conversation, message, match.by_skeleton)

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        return self._unseal_state_lazily(
            await self.inner.find_conversation(tenant=tenant, conversation_id=conversation_id)
        )

    async def find_conversation_of_any_tenant(self, conversation_id: str) -> Conversation | None:
        return self._unseal_state_lazily(await self.inner.find_conversation_of_any_tenant(conversation_id))

    async def find_proofs(self, *, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
        found = await self.inner.find_proofs(tenant=tenant, fingerprints=fingerprints)
        return [replace(proof, conversation=self._unseal_state_lazily(proof.conversation)) for proof in found]

    def _unseal_state_lazily(self, found: Conversation | None) -> Conversation | None:
        return None if found is None else self.sealer.unseal_state_lazily(found)

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return await self._unseal_messages(conversation, await self.inner.read_log(conversation, from_seq, to_seq))

    async def read_log_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        return await self._unseal_messages(conversation, await self.inner.read_log_ranges(conversation, ranges))

    async def _unseal_messages(self, conversation: Conversation, entries: list[LogMessage]) -> list[LogMessage]:
        tenant = conversation.tenant
        return await self._seal_or_unseal_all(
            entries, lambda entry: self.sealer.unseal_message(tenant, entry), estimate_decryption_bytes(entries)
        )

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        tenant = conversation.tenant
        found = await self.inner.read_client_versions(conversation, until_seq=until_seq)
        size = sum(len(body) + MESSAGE_OVERHEAD_BYTES for one in found for body in one.bodies or ())
        return await self._seal_or_unseal_all(found, lambda one: self.sealer.unseal_client_version(tenant, one), size)

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Indexes messages; does nothing while a key is active, since an index would reveal the words."""
        if self.is_fully_searchable:
            await self.inner.index_messages(conversation, entries)

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """As `ConversationStore.search_log`. While a key is active, only the newest messages of a long range are
        searched.
        """
        if not self.is_fully_searchable:
            return await self._unindexed_search.search_log(
                conversation, terms=terms, from_seq=from_seq, before_seq=before_seq, limit=limit
            )
        # Without an active key, the hits may still be ciphertext from the time of an earlier key.
        found = await self.inner.search_log(
            conversation, terms=terms, from_seq=from_seq, before_seq=before_seq, limit=limit
        )
        return [SearchHit(self.sealer.unseal_message(conversation.tenant, one.message), one.score) for one in found]

    def append(self, write: LogAppend) -> PendingAppend:
        return self._seal_and_append(write) if self.sealer.is_encrypting else self.inner.append(write)

    async def _seal_and_append(self, write: LogAppend) -> None:
        tenant = write.conversation.tenant
        messages = await self._seal_messages(tenant, write.messages)
        sealed = self.sealer.seal_conversation_state(write.conversation)
        versions = [self.sealer.seal_client_version(tenant, one) for one in write.versions]
        await self.inner.append(replace(write, conversation=sealed, messages=messages, versions=versions))

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
        found = await self.inner.find_summaries(
            tenant=tenant, root=root, path=path, links=links, from_link=from_link, with_texts=with_texts
        )
        return [self.sealer.unseal_summary(tenant, summary) for summary in found] if with_texts else found

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        await self.inner.add_summary(
            tenant=tenant, root=root, summary=self.sealer.seal_summary(tenant, summary), fence=fence
        )

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        found = await self.inner.list_conversations(tenant=tenant, query=query)
        return [self.sealer.unseal_state_lazily(conversation) for conversation in found]

    async def replace_metadata(
        self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation | None:
        described = await self.inner.replace_metadata(tenant=tenant, conversation_id=conversation_id, metadata=metadata)
        return self._unseal_state_lazily(described)

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        tenant = conversation.tenant
        sealed = await self._seal_messages(tenant, entries)
        return [
            self.sealer.unseal_summary(tenant, summary)
            for summary in await self.inner.redact_messages(conversation, sealed)
        ]

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        tenant = conversation.tenant
        sealed = await self._seal_messages(tenant, entries)
        await self.inner.rewrite_sealed_fields(
            self.sealer.seal_conversation_state(conversation),
            entries=sealed,
            summaries=[self.sealer.seal_summary(tenant, summary) for summary in summaries],
            client_versions=[self.sealer.seal_client_version(tenant, one) for one in client_versions],
        )

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        await self.inner.revise_summary(tenant=tenant, root=root, summary=self.sealer.seal_summary(tenant, summary))

    async def read_summary_revisions(self, *, tenant: str, root: str, summary_id: str) -> list[Summary]:
        found = await self.inner.read_summary_revisions(tenant=tenant, root=root, summary_id=summary_id)
        return [self.sealer.unseal_summary(tenant, summary) for summary in found]

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        """As `ConversationStore.search_tenant`. While a key is active, only the newest conversations are searched."""
        if not self.is_fully_searchable:
            return await self._unindexed_search.search_tenant(tenant=tenant, terms=terms, limit=limit)
        found = await self.inner.search_tenant(tenant=tenant, terms=terms, limit=limit)
        return [
            ConversationHit(
                self.sealer.unseal_conversation_state(one.conversation),
                self.sealer.unseal_message(tenant, one.message),
                one.score,
            )
            for one in found
        ]

    async def save_completion(self, completion: StoredCompletion) -> None:
        await self.inner.save_completion(self.sealer.seal_completion(completion))

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        found = await self.inner.list_completions(tenant=tenant, query=query)
        return await self._seal_or_unseal_all(found, self.sealer.unseal_completion, 0)

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        found = await self.inner.find_completion(tenant=tenant, completion_id=completion_id)
        return None if found is None else self.sealer.unseal_completion(found)

    async def _seal_messages(self, tenant: str, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        if not self.sealer.is_encrypting:
            return entries
        size = sum(len(entry.message.raw) for entry in entries) + len(entries) * MESSAGE_OVERHEAD_BYTES
        return await self._seal_or_unseal_all(entries, lambda entry: self.sealer.seal_message(tenant, entry), size)

    async def _seal_or_unseal_all(
        self, items: Sequence[Source], convert: Callable[[Source], Converted], size_bytes: int
    ) -> list[Converted]:
        """Encrypts or decrypts items one after the other; in a thread if they are large.

        Args:
            size_bytes: bytes to encrypt or decrypt.
        """
        if size_bytes <= INLINE_LIMIT_BYTES:
            return [convert(item) for item in items]
        return await asyncio.to_thread(lambda: [convert(item) for item in items])


def estimate_decryption_bytes(entries: Iterable[LogMessage]) -> int:
    """Returns the bytes to decrypt, with `MESSAGE_OVERHEAD_BYTES` for each message."""
    return sum(
        [len(raw) + MESSAGE_OVERHEAD_BYTES for entry in entries if (raw := entry.message.raw).startswith(SEALED_PREFIX)]
    )
