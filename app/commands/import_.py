"""`concertina import`: conversations of other programs, or exports, straight into the database: all of a file or none.

(The module's name has a mark at its end because Python keeps the word for itself.)
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from app.commands import CommandFailed
from app.commands.open_store import opened_store
from app.commands.progress import Telling, counted, tell_interrupted
from app.commands.top_screen.number_format import shown
from app.context.count.token_counter import counter_for, encoding_for
from app.conversations.transfer.import_ import Checked, Importing, TakenIn, checked
from app.pipeline.background_tasks import Tasks
from app.pipeline.token_counting import Counting
from app.settings import Settings, load
from migrations import run as migrations

LAST_WRITES_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    if settings.database.location.startswith("memory:"):
        raise CommandFailed("nothing can be kept in memory://; name a database in `database.url`.")
    found = checked(_read(arguments.file), arguments.format)
    try:
        migrations.prepare(settings.database.url.get_secret_value(), auto_migrate=settings.database.auto_migrate)
    except (migrations.SchemaIsNewer, migrations.SchemaIsOlder) as error:
        raise CommandFailed(str(error)) from error
    messages = sum(one.count for one in found)
    try:
        with Telling("importing", "messages", quiet=arguments.quiet) as telling:
            telling.expect(messages)
            taken = asyncio.run(_keep(settings, arguments.tenant, found, telling))
    except KeyboardInterrupt:
        tell_interrupted("What had been written was taken back; run the command again to import all of the file.")
        raise
    for warning in taken.warnings:
        print(f"warning: {shown(warning)}", file=sys.stderr)
    for conversation in taken.conversations:
        print(conversation.id)
    telling.say(
        f"{counted(len(taken.conversations), 'conversation')}, {counted(messages, 'message')} imported "
        f"for tenant {arguments.tenant!r} in {telling.took()}."
    )
    return 0


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{name} cannot be read: {error.strerror}.") from error


async def _keep(settings: Settings, tenant: str, found: list[Checked], telling: Telling) -> TakenIn:
    tasks = Tasks()
    async with opened_store(settings) as store:
        importing = Importing(
            store=store,
            counting=Counting(counter_for),
            tasks=tasks,
            random_bytes=secrets.token_bytes,
            encoding=encoding_for(""),
        )
        try:
            return await importing.keep(tenant, found, on_kept=telling.advance)
        finally:
            await tasks.aclose(LAST_WRITES_SECONDS)
