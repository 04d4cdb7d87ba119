"""`concertina serve`: runs the gateway."""

from __future__ import annotations

import argparse

from app.commands import CommandError
from app.main import serve
from app.settings import load_settings
from migrations.run import SchemaIsNewer, SchemaIsOlder


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in ("host", "port", "workers")}
    overrides: list[str] = []
    settings = load_settings(
        arguments.config,
        arguments={("server", name): value for name, value in options.items() if value is not None},
        on_override=overrides.append,
    )
    try:
        return serve(settings, overrides)
    except (SchemaIsNewer, SchemaIsOlder) as error:
        raise CommandError(str(error)) from error
