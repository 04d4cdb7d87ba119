"""Is a database's schema the one that this version needs, and if not: make it so, or say so.

A server start asks one plain question on the bare driver. Alembic, which takes longer to import than everything else
together, is loaded only when there is something to migrate.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import asyncpg
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.schema import CreateIndex, CreateTable

from app.errors import StoreUnavailable
from app.store.location import Location, location_of
from app.store.postgres_pool import unavailable as unavailable_postgres
from app.store.sqlite_lanes import unavailable as unavailable_sqlite
from app.store.tables import SCHEMA_VERSION, is_on, metadata

TIMEOUT_SECONDS: Final = 10.0
LOCKED_PAUSE_SECONDS: Final = 0.02

_VERSION_TABLE: Final = """
    CREATE TABLE alembic_version (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
    )"""


class SchemaIsNewer(Exception):
    """The database was written by a newer version of Concertina; this one leaves it alone."""


class SchemaIsOlder(Exception):
    """The database has to be migrated first, and that is not to happen by itself."""


def head() -> str:
    """The schema version that this version of Concertina needs."""
    return SCHEMA_VERSION


def current(url: str) -> str | None:
    """The schema version of a database; None if it has none yet.

    Raises:
        ValueError: the URL is none of the accepted forms.
        StoreUnavailable: the database cannot be reached.
    """
    return _current(location_of(url))


def upgrade(url: str, *, on_step: Callable[[str], None] | None = None) -> None:
    """Bring a database's schema up to date. Nothing happens where it is.

    Args:
        on_step: told of each schema version once its step is taken; all take effect together, at the end.

    Raises:
        SchemaIsNewer: a newer version has been there.
        ValueError, StoreUnavailable: as for `current`.
    """
    prepare(url, auto_migrate=True, on_step=on_step)


def prepare(url: str, *, auto_migrate: bool, on_step: Callable[[str], None] | None = None) -> None:
    """Make sure that a server can use a database.

    Args:
        on_step: as for `upgrade`.

    Raises:
        SchemaIsNewer: a newer version has been there.
        SchemaIsOlder: it has to be migrated, and `auto_migrate` is off.
        ValueError, StoreUnavailable: as for `current`.
    """
    location = location_of(url)
    if location.backend == "memory":
        return
    found = _current(location)
    if found == SCHEMA_VERSION:
        return
    if found is not None and not _upgrading().knows(found):
        raise SchemaIsNewer(
            f"The database's schema is {found!r}, which this version does not know; it needs {SCHEMA_VERSION!r}. "
            "Run the newer version of Concertina, or restore a backup from before it."
        )
    if not auto_migrate:
        raise SchemaIsOlder(
            f"The database's schema is {found or 'empty'!r}, this version needs {SCHEMA_VERSION!r}. "
            "Run `concertina migrate`, or set `database.auto_migrate: true`."
        )
    if location.backend == "sqlite" and found is None and _created(location.path):
        if on_step is not None:
            on_step(SCHEMA_VERSION)
        return
    try:
        _upgrading().upgrade_schema(location, on_step=on_step)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unavailable_postgres(error) from error


def _upgrading() -> ModuleType:
    # Imported here and by name: a start that has nothing to migrate must not wait for Alembic.
    return importlib.import_module("migrations.upgrading")


def _current(location: Location) -> str | None:
    if location.backend == "sqlite":
        return _current_sqlite(location.path)
    if location.backend == "postgresql":
        return asyncio.run(_current_postgres(location.dsn))
    return SCHEMA_VERSION


def _current_sqlite(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=TIMEOUT_SECONDS)) as connection:
            if not _has_version_table(connection):
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise unavailable_sqlite(error) from error
    return None if row is None else str(row[0])


def _has_version_table(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'")
    return found.fetchone() is not None


async def _current_postgres(dsn: str) -> str | None:
    try:
        connection = await asyncpg.connect(
            dsn, timeout=TIMEOUT_SECONDS, command_timeout=TIMEOUT_SECONDS, statement_cache_size=0
        )
        try:
            version = await connection.fetchval("SELECT version_num FROM alembic_version")
        except asyncpg.UndefinedTableError:
            return None
        finally:
            await connection.close(timeout=TIMEOUT_SECONDS)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unavailable_postgres(error) from error
    return None if version is None else str(version)


def _created(path: Path) -> bool:
    """Make all tables in an empty SQLite file at once, as the migrations would. False if it is not empty.

    Raises:
        StoreUnavailable: the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=TIMEOUT_SECONDS, isolation_level=None)) as connection:
            _use_write_ahead_log(connection)
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
                return False
            for statement in _all_tables():
                connection.execute(statement)
            connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (SCHEMA_VERSION,))
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise unavailable_sqlite(error) from error
    except OSError as error:
        raise StoreUnavailable(f"The directory of {str(path)!r} cannot be made: {error}.") from error
    return True


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for others when it changes the journal; each of those that start together wants to."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCKED_PAUSE_SECONDS)
        else:
            return


def _all_tables() -> list[str]:
    dialect = SQLiteDialect()
    statements = [_VERSION_TABLE]
    for table in metadata.sorted_tables:
        if not is_on(table, dialect.name):
            continue
        statements.append(str(CreateTable(table).compile(dialect=dialect)))
        statements += [str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes]
    return statements
