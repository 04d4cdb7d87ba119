"""A store around another store that encrypts texts. `store.encryption.sealed_fields` says which,
`store.encryption.cipher` how.

While a key is active, no message is indexed, since hashes of words would reveal them. A search in a conversation
decrypts the newest messages instead (`store.search.unindexed_search`). Rows that were written in plain text, or under
another key, are still readable; to read and to write them again (`concertina reencrypt`) rewrites them. Without any
key, this store only makes sure that ciphertext is never taken for text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage, StoredCompletion, Summary
from app.store.contract.conversations import LogAppend, MessageVectors, PendingAppend, SearchHit
from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.sealed_fields import FieldSealer, is_sealed_message
from app.store.search.unindexed_search import UnindexedSearch

Value = TypeVar("Value")

INLINE_LIMIT_BYTES: Final = 256 * 1024
"""More bytes than this are encrypted or decrypted in a thread; this many take half a millisecond."""
MESSAGE_OVERHEAD_BYTES: Final = 8 * 1024
"""The fixed cost of a message, in bytes that take as long."""
UNSEALED_OPERATIONS: Final = (
    *("find_link_matches", "find_conversation", "find_conversation_of_any_tenant", "find_proofs", "list_conversations"),
    *("replace_metadata", "read_log", "read_log_ranges", "read_client_versions", "find_summaries"),
    *("read_summary_revisions", "search_tenant", "list_completions", "find_completion"),
)
"""Operations of which only the result is decrypted. They take the tenant, or a conversation first."""


def encrypt_store(inner: Store, cipher: Cipher) -> Store:
    """Returns a store that encrypts what people and models wrote, and keeps it in `inner`."""
    return cast(Store, EncryptedStore(inner, cipher))


class EncryptedStore:
    """`Store` around `inner`. Operations that are not defined here have nothing to encrypt: `inner` runs them."""

    def __init__(self, inner: Store, cipher: Cipher) -> None:
        self.inner = inner
        self._sealer = FieldSealer(cipher)
        self._unindexed_search = UnindexedSearch(inner, self._sealer)
        self.is_fully_searchable = not self._sealer.is_encrypting
        for name in UNSEALED_OPERATIONS:
            setattr(self, name, self._unseal_result(getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _unseal_result(self, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            tenant = named["tenant"] if "tenant" in named else getattr(arguments[0], "tenant", "")
            found = await operation(*arguments, **named)
            return await self._unseal_all(tenant, found) if type(found) is list else self._sealer.unseal(tenant, found)

        return call

    async def _unseal_all(self, tenant: str, found: list[Value]) -> list[Value]:
        sealed = [one for one in found if isinstance(one, LogMessage) and is_sealed_message(one)]
        return await _convert_all(self._sealer.unseal, tenant, found, sealed)

    async def _seal_messages(self, tenant: str, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        return await _convert_all(self._sealer.seal, tenant, entries, entries) if entries else entries

    def append(self, write: LogAppend) -> PendingAppend:
        return self._seal_and_append(write) if self._sealer.is_encrypting else self.inner.append(write)

    async def _seal_and_append(self, write: LogAppend) -> None:
        tenant, seal = write.conversation.tenant, self._sealer.seal
        messages = await self._seal_messages(tenant, write.messages)
        versions = [seal(tenant, one) for one in write.versions]
        sealed = seal(tenant, write.conversation)
        await self.inner.append(replace(write, conversation=sealed, messages=messages, versions=versions))

    async def add_summary(self, *, tenant: str, summary: Summary, **named: Any) -> None:
        await self.inner.add_summary(tenant=tenant, summary=self._sealer.seal(tenant, summary), **named)

    async def revise_summary(self, *, tenant: str, summary: Summary, **named: Any) -> None:
        await self.inner.revise_summary(tenant=tenant, summary=self._sealer.seal(tenant, summary), **named)

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        sealed = await self._seal_messages(conversation.tenant, entries)
        return await self._unseal_all(conversation.tenant, await self.inner.redact_messages(conversation, sealed))

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        tenant, seal = conversation.tenant, self._sealer.seal
        await self.inner.rewrite_sealed_fields(
            seal(tenant, conversation),
            entries=await self._seal_messages(tenant, entries),
            summaries=[seal(tenant, summary) for summary in summaries],
            client_versions=[seal(tenant, version) for version in client_versions],
        )

    async def save_completion(self, completion: StoredCompletion) -> None:
        await self.inner.save_completion(self._sealer.seal(completion.tenant, completion))

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Indexes messages; does nothing while a key is active, since an index would reveal the words."""
        if self.is_fully_searchable:
            await self.inner.index_messages(conversation, entries)

    async def add_vectors(self, conversation: Conversation, *, model: str, vectors: Sequence[MessageVectors]) -> None:
        sealed = [self._sealer.seal(conversation.tenant, one) for one in vectors]
        await self.inner.add_vectors(conversation, model=model, vectors=sealed)

    async def read_vectors(self, conversation: Conversation, **named: Any) -> list[MessageVectors]:
        found = await self.inner.read_vectors(conversation, **named)
        # In a thread: those of a long conversation have megabytes.
        return await asyncio.to_thread(lambda: [self._sealer.unseal(conversation.tenant, one) for one in found])

    async def search_log(self, conversation: Conversation, **named: Any) -> list[SearchHit]:
        """As `ConversationStore.search_log`. While a key is active, only the newest messages of a long range are
        searched.
        """
        search = self.inner if self.is_fully_searchable else self._unindexed_search
        return await self._unseal_all(conversation.tenant, await search.search_log(conversation, **named))


async def _convert_all(
    convert: Callable[[str, Value], Value], tenant: str, values: Sequence[Value], costly: Sequence[LogMessage]
) -> list[Value]:
    """Encrypts or decrypts values one after the other; in a thread if the `costly` messages among them are large."""
    size_bytes = sum([len(one.message.raw) + MESSAGE_OVERHEAD_BYTES for one in costly])
    if size_bytes <= INLINE_LIMIT_BYTES:
        return [convert(tenant, value) for value in values]
    return await asyncio.to_thread(lambda: [convert(tenant, value) for value in values])
