"""Opens the configured store for a command, and lists all conversations in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from app.assembly.engine import build_store
from app.conversation.conversation_types import Conversation
from app.settings import Settings
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.store import Store

PAGE_SIZE: Final = 100


@asynccontextmanager
async def open_configured_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the configured store for the length of a block.

    Raises:
        StoreUnavailable: the store cannot be reached, or its schema is another version's.
    """
    store = build_store(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def stream_conversations(store: ConversationStore, tenant: str | None = None) -> AsyncIterator[Conversation]:
    """Yields the conversations of a tenant (None: of all tenants), oldest first. Reads them page by page."""
    after = None
    while True:
        page = await store.list_conversations(
            tenant=tenant, query=ConversationQuery(limit=PAGE_SIZE, descending=False, after=after)
        )
        for conversation in page:
            yield conversation
        if len(page) < PAGE_SIZE:
            return
        last = page[-1]
        assert last.created_at is not None
        after = (last.created_at, last.id)
