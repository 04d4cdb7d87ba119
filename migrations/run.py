"""Checks whether a database has the schema that this version needs; if not, migrates it or says why not.

A server's start makes one query on the bare driver, and creates an empty database from a script. Alembic and
SQLAlchemy, which take longer to import than everything else together, are imported only if there is something to
migrate.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from app.store.database_url import DatabaseLocation, parse_database_url
from app.store.sql.required_schema_version import SCHEMA_VERSION


class SchemaIsNewer(Exception):
    """A newer version of Concertina has written the database; this version must not change it."""


class SchemaIsOlder(Exception):
    """The database must be migrated first, and automatic migration is off."""


def required_schema_version() -> str:
    """Returns the schema version that this version of Concertina needs."""
    return SCHEMA_VERSION


def read_schema_version(url: str) -> str | None:
    """Returns the schema version of a database; None if it has none yet.

    Raises:
        ValueError: the URL is none of the accepted forms.
        StoreUnavailable: the database cannot be reached.
    """
    return _read_schema_version(parse_database_url(url))


def upgrade_database(url: str, *, on_step: Callable[[str], None] | None = None) -> None:
    """Migrates a database to the newest schema. Does nothing if it is up to date.

    Args:
        on_step: is called with each schema version after its step. All steps take effect together, at the end.

    Raises:
        SchemaIsNewer: a newer version has migrated the database.
        ValueError, StoreUnavailable: as for `read_schema_version`.
    """
    prepare_database(url, auto_migrate=True, on_step=on_step)


def prepare_database(url: str, *, auto_migrate: bool, on_step: Callable[[str], None] | None = None) -> None:
    """Makes sure that a server can use a database.

    Args:
        auto_migrate: whether to migrate an older or empty database.
        on_step: as for `upgrade_database`.

    Raises:
        SchemaIsNewer: a newer version has migrated the database.
        SchemaIsOlder: the database must be migrated, and `auto_migrate` is off.
        ValueError, StoreUnavailable: as for `read_schema_version`.
    """
    location = parse_database_url(url)
    if location.backend == "memory":
        return
    found = _read_schema_version(location)
    if found == SCHEMA_VERSION:
        return
    # An unknown version cannot be migrated, so this comes before the question whether migration is allowed.
    if found is not None and not _import_upgrade_module().knows(found):
        raise SchemaIsNewer(
            f"The database's schema is {found!r}, which this version does not know; it needs {SCHEMA_VERSION!r}. "
            "Run the newer version of Concertina, or restore a backup from before it."
        )
    if not auto_migrate:
        raise SchemaIsOlder(
            f"The database's schema is {found or 'empty'!r}, this version needs {SCHEMA_VERSION!r}. "
            "Run `concertina migrate`, or set `database.auto_migrate: true`."
        )
    # Creating from a script spares a first start the import of Alembic.
    if found is None and _import_driver_module(location).create(location):
        if on_step is not None:
            on_step(SCHEMA_VERSION)
        return
    if found is None and _read_schema_version(location) == SCHEMA_VERSION:
        # Another process that starts at the same time has created the tables while this one waited.
        return
    try:
        _import_upgrade_module().upgrade_schema(location, on_step=on_step)
    except _import_driver_module(location).FAULTS as error:
        raise _import_driver_module(location).translate_driver_error(error) from error


def _import_driver_module(location: DatabaseLocation) -> ModuleType:
    # Imported by name: a server needs the driver of its own database only.
    return importlib.import_module(f"migrations.on_{location.backend}")


def _import_upgrade_module() -> ModuleType:
    # Imported here and by name: a start without a migration must not wait for Alembic.
    return importlib.import_module("migrations.upgrading")


def _read_schema_version(location: DatabaseLocation) -> str | None:
    if location.backend == "memory":
        return SCHEMA_VERSION
    found: str | None = _import_driver_module(location).current(location)
    return found
