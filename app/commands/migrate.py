"""`concertina migrate`: bring the database's schema up to date, step by step, all of it or nothing."""

from __future__ import annotations

import argparse

from app.commands import CommandFailed
from app.commands.progress import Telling, tell_interrupted
from app.settings import load
from migrations.run import SchemaIsNewer, upgrade


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    url = settings.database.url.get_secret_value()
    try:
        with Telling("migrating", "steps", quiet=arguments.quiet) as telling:
            upgrade(url, on_step=lambda version: _tell_step(telling, version))
    except SchemaIsNewer as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        tell_interrupted("The database is as it was, since steps take effect together; run the command again.")
        raise
    if not arguments.quiet:
        print(f"{settings.database.location} is up to date.")
    return 0


def _tell_step(telling: Telling, version: str) -> None:
    telling.say(f"{version}: done after {telling.took()}")
    telling.advance()
