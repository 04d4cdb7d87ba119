"""Reads the schema version of a SQLite file, and creates a new file, on the bare driver."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

from app.errors import StoreUnavailable
from app.store.database_url import DatabaseLocation
from app.store.sql.required_schema_version import SCHEMA_VERSION
from app.store.sqlite.threads import create_private_file, translate_driver_error

TIMEOUT_SECONDS: Final = 10.0
LOCKED_PAUSE_SECONDS: Final = 0.02
TABLES: Final = Path(__file__).with_name("sqlite.sql")
"""The DDL of all tables after the newest migration."""

FAULTS: Final = (sqlite3.Error,)
"""Errors that the driver raises when the file cannot be used."""


def current(location: DatabaseLocation) -> str | None:
    """As `run.read_schema_version`."""
    # `connect` would create an empty file.
    if not location.path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(location.path, timeout=TIMEOUT_SECONDS)) as connection:
            if not _has_version_table(connection):
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise translate_driver_error(error) from error
    return None if row is None else str(row[0])


def _has_version_table(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'")
    return found.fetchone() is not None


def create(location: DatabaseLocation) -> bool:
    """Creates all tables in an empty file at once, with the same result as the migrations. Returns False if the file is
    not empty.

    Raises:
        StoreUnavailable: the file cannot be created.
    """
    path = location.path
    try:
        create_private_file(path)
        with contextlib.closing(sqlite3.connect(path, timeout=TIMEOUT_SECONDS, isolation_level=None)) as connection:
            _use_write_ahead_log(connection)
            connection.execute("BEGIN IMMEDIATE")
            # Checked under the write lock: another process may have created the tables meanwhile. Closing the
            # connection rolls back.
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
                return False
            create_tables(connection)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise translate_driver_error(error) from error
    except OSError as error:
        raise StoreUnavailable(f"{str(path)!r} cannot be made: {error}.") from error
    return True


def create_tables(connection: sqlite3.Connection) -> None:
    """Creates all tables in the caller's transaction, and records their schema version."""
    for statement in TABLES.read_text().split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (SCHEMA_VERSION,))


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches the file to write-ahead logging. SQLite's busy timeout does not cover this switch, which processes that
    start together all want to make, so this waits itself.
    """
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
