"""What a start asks of a PostgreSQL database, and how it fills an empty one: on the bare driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from app.store.database_url import DatabaseLocation
from app.store.postgres.pool import translate_driver_error
from app.store.sql.schema import SCHEMA_VERSION

TIMEOUT_SECONDS: Final = 10.0
LOCK_KEY: Final = 5_270_117_224_918_263
"""Advisory lock of our migrations; any number that nobody else uses."""
LOCK_WAIT_SECONDS: Final = 120
"""How long one process waits for another that is migrating."""
TABLES: Final = Path(__file__).with_name("postgresql.sql")
"""All tables as the migrations leave them; written by `tools/write_schema.py`."""

FAULTS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""What may come of using the driver when the database is away."""

_LOCK: Final = f"SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS}s'; SELECT pg_advisory_xact_lock({LOCK_KEY})"
_IS_EMPTY: Final = "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = current_schema()::regnamespace)"


def current(location: DatabaseLocation) -> str | None:
    """As `run.current`."""
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
    """Make all tables in an empty schema at once, as the migrations would. False if it is not empty.

    Raises:
        StoreUnavailable: the database cannot be reached, or does not let us.
    """
    return asyncio.run(_create(location.dsn))


async def _create(dsn: str) -> bool:
    try:
        async with _connected(dsn, LOCK_WAIT_SECONDS) as connection, connection.transaction():
            await connection.execute(_LOCK)
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
