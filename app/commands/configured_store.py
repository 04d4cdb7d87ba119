"""Prepares and opens the configured store for a command, and lists all conversations in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from app.assembly.gateway import build_store
from app.commands import CommandError
from app.conversation.conversation_types import Conversation
from app.conversations.history.conversation_records import stream_conversation_pages
from app.settings import Settings
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.store import Store
from app.store.database_url import parse_database_url
from migrations import run as migrations

PAGE_SIZE: Final = 100


def prepare_configured_database(settings: Settings, writing: str) -> None:
    """Makes the tables of the configured database, or upgrades them. A command may write before the first gateway
    starts.

    Args:
        writing: what is to be written, with its preposition, such as `keys in`.

    Raises:
        CommandError: the database keeps nothing, or its schema is another version's.
    """
    if settings.database.url_without_credentials.startswith("memory:"):
        raise CommandError(f"{writing} memory:// would be lost; name a database in `database.url`.")
    try:
        migrations.prepare_database(
            settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate
        )
    except (migrations.SchemaIsNewer, migrations.SchemaIsOlder) as error:
        raise CommandError(str(error)) from error


def require_database(settings: Settings) -> None:
    """Refuses a SQLite file that does not exist. A command that only reads would make an empty one in the wrong folder.

    Raises:
        CommandError: there is no such file.
    """
    location = parse_database_url(settings.database.url.get_secret_value())
    if location.backend == "sqlite" and not location.path.exists():
        raise CommandError(
            f"there is no database at {settings.database.location}; run this in the folder where the gateway runs, or "
            "pass --config."
        )


@asynccontextmanager
async def open_configured_store(settings: Settings) -> AsyncIterator[Store]:
    """Opens the configured store for the length of a block.

    Raises:
        CommandError: there is no such SQLite file.
        StoreUnavailable: the store cannot be reached, or its schema is another version's.
    """
    require_database(settings)
    store = build_store(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def stream_conversations(store: ConversationStore, tenant: str | None = None) -> AsyncIterator[Conversation]:
    """Yields the conversations of a tenant (None: of all tenants), oldest first. Reads them page by page."""
    query = ConversationQuery(limit=PAGE_SIZE, descending=False)
    async for page in stream_conversation_pages(store, tenant, query):
        for conversation in page:
            yield conversation
