"""`concertina migrate`: upgrades the database's schema, all steps or none, and then counts existing answers."""

from __future__ import annotations

import argparse
import asyncio

from app.commands import CommandError
from app.commands.configured_store import open_configured_store
from app.commands.progress import CommandProgress
from app.conversations.answer_fingerprints import count_existing_answers
from app.settings import Settings, load_settings
from migrations.run import SchemaIsNewer, upgrade_database

INTERRUPTION = "The database is unchanged, since all steps take effect together; run the command again."


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    url = settings.database.url.get_secret_value()
    progress = CommandProgress("migrating", "steps", quiet=arguments.quiet, describe_interruption=lambda: INTERRUPTION)
    try:
        with progress:
            upgrade_database(url, on_step=lambda version: _print_step(progress, version))
    except SchemaIsNewer as error:
        raise CommandError(str(error)) from error
    with CommandProgress("counting answers of", "conversations", quiet=arguments.quiet) as progress:
        asyncio.run(_count_answers(settings, progress))
    if not arguments.quiet:
        print(f"{settings.database.url_without_credentials} is up to date.")
    return 0


async def _count_answers(settings: Settings, progress: CommandProgress) -> None:
    async with open_configured_store(settings) as store:
        await count_existing_answers(store, store, on_counted=progress.advance)


def _print_step(progress: CommandProgress, version: str) -> None:
    progress.print_line(f"{version}: done after {progress.format_elapsed()}")
    progress.advance()
