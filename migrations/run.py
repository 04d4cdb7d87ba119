"""Is a database's schema the one that this version needs, and if not: make it so, or say so.

A server start asks one plain question on the bare driver, and makes an empty database from a script. Alembic and
SQLAlchemy, which take longer to import than everything else together, are loaded only when there is something to
migrate.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from app.store.database_url import DatabaseLocation, parse_database_url
from app.store.sql.schema import SCHEMA_VERSION


class SchemaIsNewer(Exception):
    """The database was written by a newer version of Concertina; this one leaves it alone."""


class SchemaIsOlder(Exception):
    """The database has to be migrated first, and that is not to happen by itself."""


def required_schema_version() -> str:
    """The schema version that this version of Concertina needs."""
    return SCHEMA_VERSION


def read_schema_version(url: str) -> str | None:
    """The schema version of a database; None if it has none yet.

    Raises:
        ValueError: the URL is none of the accepted forms.
        StoreUnavailable: the database cannot be reached.
    """
    return _read_schema_version(parse_database_url(url))


def upgrade_database(url: str, *, on_step: Callable[[str], None] | None = None) -> None:
    """Bring a database's schema up to date. Nothing happens where it is.

    Args:
        on_step: told of each schema version once its step is taken; all take effect together, at the end.

    Raises:
        SchemaIsNewer: a newer version has been there.
        ValueError, StoreUnavailable: as for `current`.
    """
    prepare_database(url, auto_migrate=True, on_step=on_step)


def prepare_database(url: str, *, auto_migrate: bool, on_step: Callable[[str], None] | None = None) -> None:
    """Make sure that a server can use a database.

    Args:
        on_step: as for `upgrade_database`.

    Raises:
        SchemaIsNewer: a newer version has been there.
        SchemaIsOlder: it has to be migrated, and `auto_migrate` is off.
        ValueError, StoreUnavailable: as for `current`.
    """
    location = parse_database_url(url)
    if location.backend == "memory":
        return
    found = _read_schema_version(location)
    if found == SCHEMA_VERSION:
        return
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
    if found is None and _import_driver_module(location).create(location):
        if on_step is not None:
            on_step(SCHEMA_VERSION)
        return
    if found is None and _read_schema_version(location) == SCHEMA_VERSION:
        # Another process that starts as well has made it while we waited.
        return
    try:
        _import_upgrade_module().upgrade_schema(location, on_step=on_step)
    except _import_driver_module(location).FAULTS as error:
        raise _import_driver_module(location).translate_driver_error(error) from error


def _import_driver_module(location: DatabaseLocation) -> ModuleType:
    # By name, so that a server imports the driver of its own database only.
    return importlib.import_module(f"migrations.on_{location.backend}")


def _import_upgrade_module() -> ModuleType:
    # Imported here and by name: a start that has nothing to migrate must not wait for Alembic.
    return importlib.import_module("migrations.upgrading")


def _read_schema_version(location: DatabaseLocation) -> str | None:
    if location.backend == "memory":
        return SCHEMA_VERSION
    found: str | None = _import_driver_module(location).current(location)
    return found
