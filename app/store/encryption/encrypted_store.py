"""A store whose texts are under a key, around any other store. See `store.encryption.sealed_fields` for what is, and
`ciphers` for how.

While a key is active nothing is indexed by its words, whose hashes would tell them: a search decrypts the newest
messages and looks into those (`store.search.unindexed_search`). Rows that were written before encryption was switched
on, or under another key, are read as they are; `store.encryption.reencryption` writes them anew. Without any key it
only sees to it that no ciphertext is ever taken for text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from app.conversation.api_keys import ApiKey
from app.conversation.messages import Anchor, Chunk, ClientVersion, Conversation, LogMessage, StoredCompletion
from app.store.contract import (
    Append,
    CompletionQuery,
    Found,
    FoundAnywhere,
    Lease,
    ListQuery,
    Match,
    RequestKey,
    Store,
    StoreInfo,
    UnderWay,
)
from app.store.encryption.cipher import Cipher, is_sealed
from app.store.encryption.sealed_fields import Sealing
from app.store.search.unindexed_search import Unindexed

Sealed = TypeVar("Sealed")
Opened = TypeVar("Opened")

INLINE_BYTES: Final = 256 * 1024
"""More than this is not encrypted or decrypted on the event loop: half a millisecond."""
BYTES_OF_A_MESSAGE: Final = 8 * 1024
"""What a message takes beside its length, in bytes that take as long."""


class EncryptedStore:
    """`Store` that passes everything on to another one, with what people and models said encrypted."""

    def __init__(self, inner: Store, cipher: Cipher) -> None:
        self.inner = inner
        self.sealing = Sealing(cipher)
        self._unindexed = Unindexed(inner, self.sealing)

    @property
    def searches_all(self) -> bool:
        return not self.sealing.is_active

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def check(self) -> StoreInfo:
        return await self.inner.check()

    async def find(
        self, *, tenant: str, root: str, links: Sequence[bytes], skeletons: Sequence[bytes], within: str | None = None
    ) -> list[Match]:
        found = await self.inner.find(tenant=tenant, root=root, links=links, skeletons=skeletons, within=within)
        return await self._each(found, self._opened_match, sealed_bytes(match.message for match in found))

    def _opened_match(self, match: Match) -> Match:
        conversation = self.sealing.open_conversation(match.conversation)
        message = self.sealing.open_message(conversation.tenant, match.message)
        is_plain = conversation is match.conversation and message is match.message
        return match if is_plain else Match(conversation, message, match.by_skeleton)

    async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        return self._opened(await self.inner.get(tenant=tenant, conversation_id=conversation_id))

    async def look_up(self, conversation_id: str) -> Conversation | None:
        return self._opened(await self.inner.look_up(conversation_id))

    def _opened(self, found: Conversation | None) -> Conversation | None:
        return None if found is None else self.sealing.open_later(found)

    async def point(self, *, tenant: str, external_id: str, conversation: Conversation) -> None:
        await self.inner.point(tenant=tenant, external_id=external_id, conversation=conversation)

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        return await self._all_opened(conversation, await self.inner.read(conversation, from_seq, to_seq))

    async def read_ranges(self, conversation: Conversation, ranges: Sequence[tuple[int, int]]) -> list[LogMessage]:
        return await self._all_opened(conversation, await self.inner.read_ranges(conversation, ranges))

    async def _all_opened(self, conversation: Conversation, entries: list[LogMessage]) -> list[LogMessage]:
        tenant = conversation.tenant
        return await self._each(entries, lambda entry: self.sealing.open_message(tenant, entry), sealed_bytes(entries))

    async def versions(self, conversation: Conversation, *, until_seq: int | None = None) -> list[ClientVersion]:
        tenant = conversation.tenant
        found = await self.inner.versions(conversation, until_seq=until_seq)
        size = sum(len(body) + BYTES_OF_A_MESSAGE for one in found for body in one.bodies or ())
        return await self._each(found, lambda one: self.sealing.open_version(tenant, one), size)

    async def keep_anchors(self, anchors: Sequence[Anchor]) -> None:
        await self.inner.keep_anchors(anchors)

    async def find_anchors(self, digests: Sequence[bytes]) -> list[Anchor]:
        return await self.inner.find_anchors(digests)

    async def index(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Nothing while a key is active: an index would tell the words."""
        if self.searches_all:
            await self.inner.index(conversation, entries)

    async def forget_index(self) -> None:
        await self.inner.forget_index()

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """While a key is active, of long ranges only the newest messages are looked into."""
        if not self.searches_all:
            return await self._unindexed.search(
                conversation, terms=terms, from_seq=from_seq, before_seq=before_seq, limit=limit
            )
        found = await self.inner.search(
            conversation, terms=terms, from_seq=from_seq, before_seq=before_seq, limit=limit
        )
        return [Found(self.sealing.open_message(conversation.tenant, one.message), one.score) for one in found]

    def append(self, write: Append) -> UnderWay:
        return self._append_sealed(write) if self.sealing.is_active else self.inner.append(write)

    async def _append_sealed(self, write: Append) -> None:
        tenant = write.conversation.tenant
        messages = await self._sealed(tenant, write.messages)
        sealed = self.sealing.seal_conversation(write.conversation)
        versions = [self.sealing.seal_version(tenant, one) for one in write.versions]
        await self.inner.append(replace(write, conversation=sealed, messages=messages, versions=versions))

    async def delete(self, *, tenant: str, conversation_id: str) -> bool:
        return await self.inner.delete(tenant=tenant, conversation_id=conversation_id)

    async def chunks(
        self,
        *,
        tenant: str,
        root: str,
        path: Sequence[tuple[str, int]] = (),
        links: Sequence[bytes] = (),
        after: bytes | None = None,
        texts: bool = True,
    ) -> list[Chunk]:
        found = await self.inner.chunks(tenant=tenant, root=root, path=path, links=links, after=after, texts=texts)
        return [self.sealing.open_chunk(tenant, chunk) for chunk in found] if texts else found

    async def add_chunk(self, *, tenant: str, root: str, chunk: Chunk, fence: Lease) -> None:
        await self.inner.add_chunk(tenant=tenant, root=root, chunk=self.sealing.seal_chunk(tenant, chunk), fence=fence)

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        return await self.inner.claim_lease(root=root, key=key, holder=holder, seconds=seconds)

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        return await self.inner.renew_leases(leases, seconds)

    async def release_lease(self, lease: Lease) -> None:
        await self.inner.release_lease(lease)

    async def conversations(self, *, tenant: str | None, query: ListQuery) -> list[Conversation]:
        found = await self.inner.conversations(tenant=tenant, query=query)
        return [self.sealing.open_later(conversation) for conversation in found]

    async def describe(self, *, tenant: str, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        described = await self.inner.describe(tenant=tenant, conversation_id=conversation_id, metadata=metadata)
        return self._opened(described)

    async def mark(self, conversation: Conversation, marks: Mapping[str, Any]) -> None:
        await self.inner.mark(conversation, marks)

    async def redact(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Chunk]:
        tenant = conversation.tenant
        sealed = await self._sealed(tenant, entries)
        return [self.sealing.open_chunk(tenant, chunk) for chunk in await self.inner.redact(conversation, sealed)]

    async def rewrite(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        chunks: Sequence[Chunk] = (),
        versions: Sequence[ClientVersion] = (),
    ) -> None:
        tenant = conversation.tenant
        sealed = await self._sealed(tenant, entries)
        await self.inner.rewrite(
            self.sealing.seal_conversation(conversation),
            entries=sealed,
            chunks=[self.sealing.seal_chunk(tenant, chunk) for chunk in chunks],
            versions=[self.sealing.seal_version(tenant, one) for one in versions],
        )

    async def revise(self, *, tenant: str, root: str, chunk: Chunk) -> None:
        await self.inner.revise(tenant=tenant, root=root, chunk=self.sealing.seal_chunk(tenant, chunk))

    async def revisions(self, *, tenant: str, root: str, chunk_id: str) -> list[Chunk]:
        found = await self.inner.revisions(tenant=tenant, root=root, chunk_id=chunk_id)
        return [self.sealing.open_chunk(tenant, chunk) for chunk in found]

    async def delete_chunk(self, *, tenant: str, root: str, chunk_id: str) -> bool:
        return await self.inner.delete_chunk(tenant=tenant, root=root, chunk_id=chunk_id)

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        """While a key is active only the newest conversations are looked into."""
        if not self.searches_all:
            return await self._unindexed.search_all(tenant=tenant, terms=terms, limit=limit)
        found = await self.inner.search_all(tenant=tenant, terms=terms, limit=limit)
        return [
            FoundAnywhere(
                self.sealing.open_conversation(one.conversation),
                self.sealing.open_message(tenant, one.message),
                one.score,
            )
            for one in found
        ]

    async def keep_completion(self, completion: StoredCompletion) -> None:
        await self.inner.keep_completion(self.sealing.seal_completion(completion))

    async def completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        found = await self.inner.completions(tenant=tenant, query=query)
        return await self._each(found, self.sealing.open_completion, 0)

    async def completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        found = await self.inner.completion(tenant=tenant, completion_id=completion_id)
        return None if found is None else self.sealing.open_completion(found)

    async def describe_completion(self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]) -> bool:
        return await self.inner.describe_completion(tenant=tenant, completion_id=completion_id, metadata=metadata)

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        return await self.inner.delete_completion(tenant=tenant, completion_id=completion_id)

    async def claim_request(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> RequestKey:
        return await self.inner.claim_request(
            tenant=tenant, key=key, digest=digest, holder=holder, seconds=seconds, kept_seconds=kept_seconds
        )

    async def settle_request(self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int) -> None:
        await self.inner.settle_request(tenant=tenant, key=key, holder=holder, conversation_id=conversation_id, seq=seq)

    async def give_up_request(self, *, tenant: str, key: str, holder: str) -> None:
        await self.inner.give_up_request(tenant=tenant, key=key, holder=holder)

    async def add_key(self, key: ApiKey) -> None:
        await self.inner.add_key(key)

    async def key_of(self, digest: str) -> ApiKey | None:
        return await self.inner.key_of(digest)

    async def keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        return await self.inner.keys(tenant=tenant)

    async def revoke_key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        return await self.inner.revoke_key(key_id, tenant=tenant)

    async def server_secret(self, name: str, *, proposed: str) -> str:
        return await self.inner.server_secret(name, proposed=proposed)

    async def purge_requests(self) -> int:
        return await self.inner.purge_requests()

    async def purge_chunks(self, *, made_before: datetime) -> int:
        return await self.inner.purge_chunks(made_before=made_before)

    async def scrub(self) -> None:
        await self.inner.scrub()

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        return await self.inner.model_facts()

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        await self.inner.learn(model=model, facts=facts)

    async def _sealed(self, tenant: str, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        if not self.sealing.is_active:
            return entries
        size = sum(len(entry.message.raw) for entry in entries) + len(entries) * BYTES_OF_A_MESSAGE
        return await self._each(entries, lambda entry: self.sealing.seal_message(tenant, entry), size)

    async def _each(self, items: Sequence[Sealed], change: Callable[[Sealed], Opened], size: int) -> list[Opened]:
        """Seal or open one after the other, off the event loop where that takes long.

        Args:
            size: how many bytes there are to do.
        """
        if size <= INLINE_BYTES:
            return [change(item) for item in items]
        return await asyncio.to_thread(lambda: [change(item) for item in items])


def sealed_bytes(entries: Iterable[LogMessage]) -> int:
    """How much there is to open."""
    return sum(len(entry.message.raw) + BYTES_OF_A_MESSAGE for entry in entries if is_sealed(entry.message.raw))
