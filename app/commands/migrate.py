"""`concertina migrate`: bring the database's schema up to date."""

from __future__ import annotations

import argparse

from app.commands import CommandFailed
from app.settings import load
from migrations.run import SchemaIsNewer, upgrade


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    try:
        upgrade(settings.database.url.get_secret_value())
    except SchemaIsNewer as error:
        raise CommandFailed(str(error)) from error
    print(f"{settings.database.location} is up to date.")
    return 0
