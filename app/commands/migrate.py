"""`concertina migrate`: upgrades the database's schema, all steps or none."""

from __future__ import annotations

import argparse

from app.commands import CommandError
from app.commands.progress import CommandProgress, print_interruption
from app.settings import load_settings
from migrations.run import SchemaIsNewer, upgrade_database


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    url = settings.database.url.get_secret_value()
    try:
        with CommandProgress("migrating", "steps", quiet=arguments.quiet) as progress:
            upgrade_database(url, on_step=lambda version: _print_step(progress, version))
    except SchemaIsNewer as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        print_interruption("The database is unchanged, since all steps take effect together; run the command again.")
        raise
    if not arguments.quiet:
        print(f"{settings.database.url_without_credentials} is up to date.")
    return 0


def _print_step(progress: CommandProgress, version: str) -> None:
    progress.print_line(f"{version}: done after {progress.format_elapsed()}")
    progress.advance()
