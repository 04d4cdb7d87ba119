"""`concertina serve`: run the gateway."""

from __future__ import annotations

import argparse

from app.commands import CommandFailed
from app.main import serve
from app.settings import load
from migrations.run import SchemaIsNewer, SchemaIsOlder


def run(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("host", "port", "workers")}
    overrides: list[str] = []
    settings = load(
        arguments.config,
        arguments={("server", name): value for name, value in given.items() if value is not None},
        on_override=overrides.append,
    )
    try:
        return serve(settings, overrides)
    except (SchemaIsNewer, SchemaIsOlder) as error:
        raise CommandFailed(str(error)) from error
