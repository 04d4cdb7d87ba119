"""`concertina reencrypt`: encrypts all stored texts with the active key, or stores them as plain text if there is no
active key.

Each conversation is read and written again, under its lease, so that no turn writes to it meanwhile. It is safe beside
running gateways, and may be stopped and started again at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from contextlib import aclosing
from typing import Final, cast

from msgspec.structs import replace

from app.commands import CommandError
from app.commands.configured_store import open_configured_store, stream_conversations
from app.commands.progress import CommandProgress
from app.conversation.conversation_types import Conversation
from app.errors import ConversationBusy, StoreUnreadable
from app.settings import Settings, load_settings
from app.store.contract.conversations import CompletionQuery
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.lineage import first_own_seq

INTERRUPTION: Final = "What was written stays; run the command again for all, and keep all keys until then."
PAGE_SIZE: Final = 100
BATCH_MESSAGES: Final = 64
"""Messages that are rewritten in one transaction. Few, since other writers wait for it."""
MAX_LISTED_IDS: Final = 10
"""How many ids are listed of the conversations that could not be rewritten."""


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    # Also to go back to plain text: the old keys are needed to read what is stored.
    if not settings.encryption.keys:
        raise CommandError("no keys are configured; name in `encryption.keys` the keys with which texts are stored.")
    progress = CommandProgress(
        "reencrypting", "conversations", quiet=arguments.quiet, describe_interruption=lambda: INTERRUPTION
    )
    with progress:
        count, busy_ids, unreadable_ids = asyncio.run(_reencrypt_store(settings, progress))
    active = settings.encryption.active
    if not arguments.quiet:
        print(f"{count} conversations rewritten {f'under the key {active!r}' if active else 'as plain text'}.")
    if busy_ids or unreadable_ids:
        _print_remaining_ids("in use; run the command again for", busy_ids)
        _print_remaining_ids("not readable with the configured keys:", unreadable_ids)
        # An error, so that a script does not remove the old keys.
        raise CommandError("some stored data could not be rewritten; keep all keys.")
    if not arguments.quiet:
        print("No other key is needed any more." if active else "No key is needed.")
    return 0


async def _reencrypt_store(settings: Settings, progress: CommandProgress) -> tuple[int, list[str], list[str]]:
    async with open_configured_store(settings) as store:
        if not progress.is_quiet:
            progress.set_total(len([None async for _ in stream_conversations(store)]))
        async with aclosing(LeaseKeeper(store, holder=uuid.uuid4().hex)) as leases:
            leases.start()
            await store.clear_vectors()  # sealed with another key, and made anew
            if not store.is_fully_searchable:
                await store.clear_search_index()  # its hashes would reveal the words
            return await rewrite_all(cast(EncryptedStore, store), leases, progress)


async def rewrite_all(
    store: EncryptedStore, leases: LeaseKeeper, progress: CommandProgress, *, wait_seconds: float = 30.0
) -> tuple[int, list[str], list[str]]:
    """Reads and writes everything in an encrypted store again.

    Args:
        wait_seconds: the longest wait for a conversation that is in use.

    Returns:
        How many conversations were rewritten; the ids of those that were in use for longer than the wait; the ids of
        conversations and completions with a field that cannot be decrypted.

    Raises:
        StoreUnavailable: the database became unavailable; what was rewritten before stays.
    """
    count, busy_ids, unreadable_ids, tenants = 0, list[str](), list[str](), set[str]()
    async for conversation in stream_conversations(store):
        tenants.add(conversation.tenant)
        try:
            async with leases.hold_lease(conversation.root, conversation.id, wait_seconds):
                await _rewrite_conversation(store, conversation)
            count += 1
        except ConversationBusy:
            busy_ids.append(conversation.id)
        except StoreUnreadable:
            unreadable_ids.append(conversation.id)
        progress.advance()
    for tenant in sorted(tenants):
        unreadable_ids += await _rewrite_completions(store, tenant)
    # The old forms of the rows are deleted text, too.
    await store.scrub_deleted_data()
    return count, busy_ids, unreadable_ids


async def _rewrite_conversation(store: ConversationAndSummaryStore, listed: Conversation) -> None:
    tenant, root = listed.tenant, listed.root
    # Read again under the lease: a turn may have changed it since it was listed.
    fresh = await store.find_conversation(tenant=tenant, conversation_id=listed.id)
    if fresh is None:
        return
    await store.rewrite_sealed_fields(fresh)
    # Inherited messages and versions are rewritten with the ancestor that holds them.
    for start in range(first_own_seq(fresh), fresh.head_seq + 1, BATCH_MESSAGES):
        entries = await store.read_log(fresh, start, min(start + BATCH_MESSAGES, fresh.head_seq + 1))
        await store.rewrite_sealed_fields(fresh, entries=entries)
    versions = await store.read_client_versions(replace(fresh, lineage=()))
    for start in range(0, len(versions), BATCH_MESSAGES):
        await store.rewrite_sealed_fields(fresh, client_versions=versions[start : start + BATCH_MESSAGES])
    for summary in await store.find_summaries(tenant=tenant, root=root, path=fresh.lineage_with_self):
        revisions = await store.read_summary_revisions(tenant=tenant, root=root, summary_id=summary.id)
        await store.rewrite_sealed_fields(fresh, summaries=revisions)


async def _rewrite_completions(store: EncryptedStore, tenant: str) -> list[str]:
    """Rewrites a tenant's stored completions. Returns the ids of those that cannot be decrypted."""
    unreadable_ids, after = list[str](), None
    # The inner store lists completions without decrypting them: one that is not readable must not end the list.
    while True:
        page = await store.inner.list_completions(tenant=tenant, query=CompletionQuery(limit=PAGE_SIZE, after=after))
        for listed in page:
            try:
                completion = await store.find_completion(tenant=tenant, completion_id=listed.id)
                if completion is not None:
                    await store.save_completion(completion)
            except StoreUnreadable:
                unreadable_ids.append(listed.id)
        if len(page) < PAGE_SIZE:
            return unreadable_ids
        after = (page[-1].created_at, page[-1].id)


def _print_remaining_ids(reason: str, ids: list[str]) -> None:
    if ids:
        more = f" and {len(ids) - MAX_LISTED_IDS} more" if len(ids) > MAX_LISTED_IDS else ""
        print(f"{len(ids)} {reason} {', '.join(ids[:MAX_LISTED_IDS])}{more}")
