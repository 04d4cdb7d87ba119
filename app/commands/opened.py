"""The configured store, open for the length of a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.assembly.engine import store_of
from app.settings import Settings
from app.store.base import Store


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """
    Raises:
        StoreUnavailable: it cannot be reached, or its schema is another version's.
    """
    store = store_of(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
