"""Reads the schema version of a PostgreSQL database, and creates the tables in an empty one, on the bare driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from app.store.database_url import DatabaseLocation
from app.store.postgres.pool import translate_driver_error
from app.store.sql.required_schema_version import SCHEMA_VERSION

TIMEOUT_SECONDS: Final = 10.0
LOCK_KEY: Final = 5_270_117_224_918_263
"""Key of the advisory lock for migrations: an arbitrary number."""
LOCK_WAIT_SECONDS: Final = 120
"""How long a process waits for another process that migrates."""
TABLES: Final = Path(__file__).with_name("postgresql.sql")
"""The DDL of all tables after the newest migration."""

FAULTS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Errors that the driver raises when the database is unavailable."""

_LOCK: Final = f"SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS}s'; SELECT pg_advisory_xact_lock({LOCK_KEY})"
_IS_EMPTY: Final = "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = current_schema()::regnamespace)"


def current(location: DatabaseLocation) -> str | None:
    """As `run.read_schema_version`."""
    return asyncio.run(_current(location.dsn))


async def _current(dsn: str) -> str | None:
    try:
        async with _connected(dsn, TIMEOUT_SECONDS) as connection:
            version = await connection.fetchval("SELECT version_num FROM alembic_version")
    except asyncpg.UndefinedTableError:
        return None
    except FAULTS as error:
        raise translate_driver_error(error) from error
    return None if version is None else str(version)


def create(location: DatabaseLocation) -> bool:
    """Creates all tables in an empty schema at once, with the same result as the migrations. Returns False if the
    schema is not empty.

    Raises:
        StoreUnavailable: the database cannot be reached, or refuses.
    """
    return asyncio.run(_create(location.dsn))


async def _create(dsn: str) -> bool:
    try:
        async with _connected(dsn, LOCK_WAIT_SECONDS) as connection, connection.transaction():
            await connection.execute(_LOCK)
            # Checked under the lock: another process may have created the tables meanwhile.
            if not await connection.fetchval(_IS_EMPTY):
                return False
            await connection.execute(TABLES.read_text())
            await connection.execute("INSERT INTO alembic_version (version_num) VALUES ($1)", SCHEMA_VERSION)
    except FAULTS as error:
        raise translate_driver_error(error) from error
    return True


@asynccontextmanager
async def _connected(dsn: str, answer_seconds: float) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(
        dsn, timeout=TIMEOUT_SECONDS, command_timeout=answer_seconds, statement_cache_size=0
    )
    try:
        yield connection
    finally:
        await connection.close(timeout=TIMEOUT_SECONDS)
