"""Rewrites what is stored: under the active key, or as plain text if there is none.

It is safe beside running gateways, and may be stopped and started again at any time: fields in the right form are
skipped. A conversation is rewritten under its lease, so that no turn writes to it meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, Summary
from app.errors import ConversationBusy, StoreUnreadable
from app.store.contract.conversations import CompletionQuery, ConversationQuery
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.lineage import first_own_seq

PAGE_SIZE: Final = 100
BATCH_MESSAGES: Final = 64
"""Messages that are rewritten in one transaction. Few, since other writers wait for it."""


@dataclass(slots=True)
class ReencryptionProgress:
    """What was read and what was rewritten so far."""

    conversations: int = 0
    """Conversations that were read."""
    messages: int = 0
    states: int = 0
    summaries: int = 0
    """Rewritten texts; each revision counts."""
    completions: int = 0
    busy_conversations: list[str] = field(default_factory=list)
    """Conversations that were in use for longer than the wait."""
    unreadable_ids: list[str] = field(default_factory=list)
    """Conversations and completions with a field that cannot be decrypted."""


class Reencryption:
    """Rewrites all fields that an encrypted store holds."""

    def __init__(
        self,
        store: EncryptedStore,
        leases: LeaseKeeper,
        *,
        wait_seconds: float = 30.0,
        on_progress: Callable[[ReencryptionProgress], None] = lambda _: None,
    ) -> None:
        """
        Args:
            wait_seconds: the longest wait for a conversation that is in use.
            on_progress: is called after each conversation.
        """
        self._inner = store.inner
        self._sealer = store.sealer
        self._leases = leases
        self._wait_seconds = wait_seconds
        self._on_progress = on_progress
        self._progress = ReencryptionProgress()

    async def run(self) -> ReencryptionProgress:
        """Rewrites every field that is not stored in the form in which it would be stored now. The search index is
        deleted first, since its hashes would reveal the words.

        Raises:
            StoreUnavailable: the database became unavailable; what was rewritten before stays.
        """
        if self._sealer.is_encrypting:
            await self._inner.clear_search_index()
        tenants: set[str] = set()
        async for conversation in self._list_conversations():
            tenants.add(conversation.tenant)
            try:
                await self._reencrypt_conversation(conversation)
            except ConversationBusy:
                self._progress.busy_conversations.append(conversation.id)
            except StoreUnreadable:
                self._progress.unreadable_ids.append(conversation.id)
            self._progress.conversations += 1
            self._on_progress(self._progress)
        for tenant in sorted(tenants):
            await self._reencrypt_completions(tenant)
        # The old forms of the rows are deleted text, too.
        await self._inner.scrub_deleted_data()
        self._on_progress(self._progress)
        return self._progress

    async def _list_conversations(self) -> AsyncIterator[Conversation]:
        after: tuple[datetime, str] | None = None
        while True:
            query = ConversationQuery(limit=PAGE_SIZE, descending=False, after=after)
            page = await self._inner.list_conversations(tenant=None, query=query)
            for conversation in page:
                yield conversation
            if len(page) < PAGE_SIZE:
                return
            assert page[-1].created_at is not None
            after = (page[-1].created_at, page[-1].id)

    async def _reencrypt_conversation(self, listed: Conversation) -> None:
        async with self._leases.hold_lease(listed.root, listed.id, self._wait_seconds):
            # Read again under the lease: a turn may have changed it since it was listed.
            stored = await self._inner.find_conversation(tenant=listed.tenant, conversation_id=listed.id)
            if stored is None:
                return
            fresh = await self._reencrypt_state(stored)
            # Inherited messages are rewritten with the ancestor that holds them.
            for start in range(first_own_seq(fresh), fresh.head_seq + 1, BATCH_MESSAGES):
                await self._reencrypt_messages(fresh, start, min(start + BATCH_MESSAGES, fresh.head_seq + 1))
            await self._reencrypt_client_versions(fresh)
            for summary in await self._inner.find_summaries(
                tenant=fresh.tenant, root=fresh.root, path=fresh.lineage_with_self
            ):
                await self._reencrypt_summary(fresh, summary)

    async def _reencrypt_state(self, stored: Conversation) -> Conversation:
        if self._sealer.is_in_current_form(stored):
            return stored
        fresh = self._sealer.seal_conversation_state(self._sealer.unseal_conversation_state(stored))
        await self._inner.rewrite_sealed_fields(fresh)
        self._progress.states += 1
        return fresh

    async def _reencrypt_messages(self, conversation: Conversation, from_seq: int, to_seq: int) -> None:
        tenant, sealing = conversation.tenant, self._sealer
        entries = await self._inner.read_log(conversation, from_seq, to_seq)
        stale = [entry for entry in entries if not sealing.is_in_current_form(entry)]
        if not stale:
            return
        fresh = [sealing.seal_message(tenant, sealing.unseal_message(tenant, entry)) for entry in stale]
        await self._inner.rewrite_sealed_fields(conversation, entries=fresh)
        self._progress.messages += len(fresh)

    async def _reencrypt_client_versions(self, conversation: Conversation) -> None:
        tenant, sealing = conversation.tenant, self._sealer
        # Without the lineage: only the conversation's own rows.
        own = await self._inner.read_client_versions(replace(conversation, lineage=()))
        stale = [one for one in own if not sealing.is_in_current_form(one)]
        for start in range(0, len(stale), BATCH_MESSAGES):
            batch = stale[start : start + BATCH_MESSAGES]
            fresh = [sealing.seal_client_version(tenant, sealing.unseal_client_version(tenant, one)) for one in batch]
            await self._inner.rewrite_sealed_fields(conversation, client_versions=fresh)

    async def _reencrypt_summary(self, conversation: Conversation, summary: Summary) -> None:
        tenant, sealing = conversation.tenant, self._sealer
        texts = [summary]
        if summary.revision > 1:
            texts = await self._inner.read_summary_revisions(
                tenant=tenant, root=conversation.root, summary_id=summary.id
            )
        fresh = [
            sealing.seal_summary(tenant, sealing.unseal_summary(tenant, text))
            for text in texts
            if not sealing.is_in_current_form(text)
        ]
        if fresh:
            await self._inner.rewrite_sealed_fields(conversation, summaries=fresh)
            self._progress.summaries += len(fresh)

    async def _reencrypt_completions(self, tenant: str) -> None:
        after: tuple[datetime, str] | None = None
        while True:
            page = await self._inner.list_completions(
                tenant=tenant, query=CompletionQuery(limit=PAGE_SIZE, after=after)
            )
            for listed in page:
                if not self._sealer.is_in_current_form(listed):
                    await self._reencrypt_completion(tenant, listed.id)
            if len(page) < PAGE_SIZE:
                return
            after = (page[-1].created_at, page[-1].id)

    async def _reencrypt_completion(self, tenant: str, completion_id: str) -> None:
        stored = await self._inner.find_completion(tenant=tenant, completion_id=completion_id)
        if stored is None:
            return
        try:
            fresh = self._sealer.seal_completion(self._sealer.unseal_completion(stored))
        except StoreUnreadable:
            self._progress.unreadable_ids.append(completion_id)
            return
        await self._inner.save_completion(fresh)
        self._progress.completions += 1
