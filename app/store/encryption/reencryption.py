"""Writing what is stored anew: under the active key, or as plain text while there is none.

Safe beside running gateways, and may be stopped and begun again at any moment: what is written as it should be is
passed over. A conversation is rewritten under its lease, so that no turn writes to it meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.conversation.messages import Chunk, Conversation
from app.errors import ConversationBusy, StoreUnreadable
from app.store.contract import CompletionQuery, ListQuery
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.lineage import own_from

PAGE: Final = 100
BATCH_MESSAGES: Final = 64
"""Few enough that a writer which others wait for is soon free again."""


@dataclass(slots=True)
class Rewritten:
    """What was looked at and what was written anew, so far."""

    conversations: int = 0
    """Looked at."""
    messages: int = 0
    states: int = 0
    summaries: int = 0
    """Each revision counts."""
    completions: int = 0
    in_use: list[str] = field(default_factory=list)
    """Conversations that were busy for too long."""
    unreadable: list[str] = field(default_factory=list)
    """Conversations and completions of which something cannot be decrypted."""


class Reencryption:
    """Goes over all that an encrypted store holds."""

    def __init__(
        self,
        store: EncryptedStore,
        leases: LeaseKeeper,
        *,
        wait_seconds: float = 30.0,
        tell: Callable[[Rewritten], None] = lambda _: None,
    ) -> None:
        """
        Args:
            wait_seconds: for a conversation that is in use.
            tell: is called after each conversation.
        """
        self._inner = store.inner
        self._sealing = store.sealing
        self._leases = leases
        self._wait_seconds = wait_seconds
        self._tell = tell
        self._done = Rewritten()

    async def run(self) -> Rewritten:
        """Rewrite everything that is not stored as it would be now. Hashes of words go first: they would tell them.

        Raises:
            StoreUnavailable: the database went away; what was written until then stays.
        """
        if self._sealing.is_active:
            await self._inner.forget_index()
        tenants: set[str] = set()
        async for conversation in self._conversations():
            tenants.add(conversation.tenant)
            try:
                await self._conversation(conversation)
            except ConversationBusy:
                self._done.in_use.append(conversation.id)
            except StoreUnreadable:
                self._done.unreadable.append(conversation.id)
            self._done.conversations += 1
            self._tell(self._done)
        for tenant in sorted(tenants):
            await self._completions(tenant)
        await self._inner.scrub()
        self._tell(self._done)
        return self._done

    async def _conversations(self) -> AsyncIterator[Conversation]:
        after: tuple[datetime, str] | None = None
        while True:
            query = ListQuery(limit=PAGE, descending=False, after=after)
            page = await self._inner.conversations(tenant=None, query=query)
            for conversation in page:
                yield conversation
            if len(page) < PAGE:
                return
            assert page[-1].created_at is not None
            after = (page[-1].created_at, page[-1].id)

    async def _conversation(self, listed: Conversation) -> None:
        async with self._leases.hold(listed.root, listed.id, self._wait_seconds):
            stored = await self._inner.get(tenant=listed.tenant, conversation_id=listed.id)
            if stored is None:
                return
            fresh = await self._state(stored)
            for start in range(own_from(fresh), fresh.head_seq + 1, BATCH_MESSAGES):
                await self._messages(fresh, start, min(start + BATCH_MESSAGES, fresh.head_seq + 1))
            await self._versions(fresh)
            for chunk in await self._inner.chunks(tenant=fresh.tenant, root=fresh.root, path=fresh.path):
                await self._summary(fresh, chunk)

    async def _state(self, stored: Conversation) -> Conversation:
        if self._sealing.is_current(stored):
            return stored
        fresh = self._sealing.seal_conversation(self._sealing.open_conversation(stored))
        await self._inner.rewrite(fresh)
        self._done.states += 1
        return fresh

    async def _messages(self, conversation: Conversation, from_seq: int, to_seq: int) -> None:
        tenant, sealing = conversation.tenant, self._sealing
        entries = await self._inner.read(conversation, from_seq, to_seq)
        stale = [entry for entry in entries if not sealing.is_current(entry)]
        if not stale:
            return
        fresh = [sealing.seal_message(tenant, sealing.open_message(tenant, entry)) for entry in stale]
        await self._inner.rewrite(conversation, entries=fresh)
        self._done.messages += len(fresh)

    async def _versions(self, conversation: Conversation) -> None:
        tenant, sealing = conversation.tenant, self._sealing
        own = await self._inner.versions(replace(conversation, lineage=()))
        stale = [one for one in own if not sealing.is_current(one)]
        for start in range(0, len(stale), BATCH_MESSAGES):
            batch = stale[start : start + BATCH_MESSAGES]
            fresh = [sealing.seal_version(tenant, sealing.open_version(tenant, one)) for one in batch]
            await self._inner.rewrite(conversation, versions=fresh)

    async def _summary(self, conversation: Conversation, chunk: Chunk) -> None:
        tenant, sealing = conversation.tenant, self._sealing
        texts = [chunk]
        if chunk.revision > 1:
            texts = await self._inner.revisions(tenant=tenant, root=conversation.root, chunk_id=chunk.id)
        fresh = [
            sealing.seal_chunk(tenant, sealing.open_chunk(tenant, text))
            for text in texts
            if not sealing.is_current(text)
        ]
        if fresh:
            await self._inner.rewrite(conversation, chunks=fresh)
            self._done.summaries += len(fresh)

    async def _completions(self, tenant: str) -> None:
        after: tuple[datetime, str] | None = None
        while True:
            page = await self._inner.completions(tenant=tenant, query=CompletionQuery(limit=PAGE, after=after))
            for listed in page:
                if not self._sealing.is_current(listed):
                    await self._completion(tenant, listed.id)
            if len(page) < PAGE:
                return
            after = (page[-1].created_at, page[-1].id)

    async def _completion(self, tenant: str, completion_id: str) -> None:
        stored = await self._inner.completion(tenant=tenant, completion_id=completion_id)
        if stored is None:
            return
        try:
            fresh = self._sealing.seal_completion(self._sealing.open_completion(stored))
        except StoreUnreadable:
            self._done.unreadable.append(completion_id)
            return
        await self._inner.keep_completion(fresh)
        self._done.completions += 1
