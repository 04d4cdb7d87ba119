"""Parses database URLs. Imports no driver, so that importing it is cheap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

_ACCEPTED_FORMS = "sqlite+aiosqlite:///FILE, postgresql+asyncpg://USER:PASSWORD@HOST:PORT/NAME or memory://"


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """Where a store is: `path` of a SQLite file, or `dsn` of a PostgreSQL database in the form that asyncpg takes."""

    backend: Literal["memory", "sqlite", "postgresql"]
    path: Path = Path()
    dsn: str = ""


def parse_database_url(url: str) -> DatabaseLocation:
    """Parses a database URL.

    `sqlite+aiosqlite:///data/c.db` is relative to the working directory; four slashes make it absolute. PostgreSQL URLs
    are libpq's: `postgresql:///name?host=/run/postgresql` connects through a Unix socket.

    Raises:
        ValueError: the URL is none of the accepted forms. The message does not repeat the URL, which may hold a
            password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"A database URL needs '://'; accepted are {_ACCEPTED_FORMS}.")
    if scheme == "memory":
        return DatabaseLocation("memory")
    if scheme in ("sqlite", "sqlite+aiosqlite"):
        file = unquote(rest.partition("?")[0])
        if not file.startswith("/") or file in ("/", "/:memory:"):
            raise ValueError(
                f"{scheme}:// needs a file after three slashes, or four for an absolute path; "
                f"for a store in memory use memory://. Accepted are {_ACCEPTED_FORMS}."
            )
        return DatabaseLocation("sqlite", path=Path(file[1:]))
    if scheme in ("postgres", "postgresql", "postgresql+asyncpg"):
        return DatabaseLocation("postgresql", dsn=f"postgresql://{rest}")
    raise ValueError(f"Unknown database scheme {scheme!r}; accepted are {_ACCEPTED_FORMS}.")
