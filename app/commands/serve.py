"""`concertina serve`: runs the gateway."""

from __future__ import annotations

import argparse
import shlex
from typing import Final

from app.commands import CommandError
from app.main import serve
from app.server import CannotListen
from app.settings import load_settings
from migrations.run import SchemaIsNewer, SchemaIsOlder

ALTERNATIVE_PORT: Final = 8080


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
    except CannotListen as error:
        hint = _suggest_other_port(settings.server.port, arguments.config) if error.is_in_use else ""
        raise CommandError(f"{error}{hint}") from error


def _suggest_other_port(port: int, config: str | None) -> str:
    other = ALTERNATIVE_PORT + (port == ALTERNATIVE_PORT)
    file = None if config is None else shlex.quote(config)
    return (
        f" Choose another port: concertina serve{f' --config {file}' if file else ''} --port {other} "
        f"(or make run{f' CONFIG={file}' if file else ''} PORT={other})."
    )
