"""`concertina migrate`: bring the database's schema up to date."""

from __future__ import annotations

import argparse

from app.settings import load
from migrations.run import upgrade


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    upgrade(settings.database.url.get_secret_value())
    print(f"{settings.database.location} is up to date.")
    return 0
