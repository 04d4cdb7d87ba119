"""`concertina serve`: run the gateway."""

from __future__ import annotations

import argparse

from app.main import serve
from app.settings import load


def run(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("host", "port", "workers")}
    return serve(
        load(
            arguments.config,
            arguments={("server", name): value for name, value in given.items() if value is not None},
        )
    )
