"""`concertina import`: stores conversations of a file in the database, all or none.

The module's name ends with an underscore because `import` is a keyword of Python.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from app.commands import CommandError, make_printable
from app.commands.configured_store import open_configured_store, prepare_configured_database
from app.commands.progress import CommandProgress, pluralize
from app.context.count.token_counter import load_token_counter
from app.context.count.vocabulary import find_encoding_name
from app.conversations.api_keys import check_tenant
from app.conversations.transfer.conversation_import import (
    ConversationImporter,
    ImportResult,
    parse_and_check_import_file,
)
from app.conversations.transfer.import_file_parser import ImportedConversation
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.token_counting import MessageCounter
from app.settings import Settings, load_settings

INTERRUPTION = "All that this import had written was removed; run the command again to import the whole file."
SHUTDOWN_SECONDS = 60.0
"""The longest wait for the removal of a failed import."""


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    check_tenant(arguments.tenant, allows_end_user=True)
    # Before the database is touched: a faulty file changes nothing.
    conversations = parse_and_check_import_file(_read_import_file(arguments.file), arguments.format)
    prepare_configured_database(settings, "an import into")
    message_count = sum(len(conversation.log) for conversation in conversations)
    progress = CommandProgress(
        "importing", "messages", quiet=arguments.quiet, describe_interruption=lambda: INTERRUPTION
    )
    with progress:
        progress.set_total(message_count)
        result = asyncio.run(_import_conversations(settings, arguments.tenant, conversations, progress))
    for warning in result.warnings:
        # The file comes from elsewhere: its ids must not send control sequences to the terminal.
        print(f"warning: {make_printable(warning)}", file=sys.stderr)
    for conversation in result.conversations:
        print(conversation.id)
    progress.print_line(
        f"{pluralize(len(result.conversations), 'conversation')}, {pluralize(message_count, 'message')} imported "
        f"for tenant {arguments.tenant!r} in {progress.format_elapsed()}."
    )
    return 0


def _read_import_file(file_name: str) -> bytes:
    if file_name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file_name).read_bytes()
    except OSError as error:
        raise CommandError(f"{file_name} cannot be read: {error.strerror}.") from error


async def _import_conversations(
    settings: Settings, tenant: str, conversations: list[ImportedConversation], progress: CommandProgress
) -> ImportResult:
    tasks = BackgroundTasks()
    async with open_configured_store(settings) as store:
        importer = ConversationImporter(
            store=store,
            message_counter=MessageCounter(load_token_counter),
            tasks=tasks,
            random_bytes=secrets.token_bytes,
            encoding=find_encoding_name(""),
        )
        try:
            return await importer.import_conversations(tenant, conversations, on_stored=progress.advance)
        finally:
            # After a second Ctrl-C, the removal of a failed import goes on as a background task and needs the store.
            await tasks.aclose(SHUTDOWN_SECONDS)
