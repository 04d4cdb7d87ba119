"""The part of migration that needs Alembic: runs the steps on one connection, under a lock, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.store.database_url import DatabaseLocation
from migrations.on_postgresql import LOCK_KEY, LOCK_WAIT_SECONDS

DDL_LOCK_WAIT_SECONDS: Final = 5
"""How long a step waits for the lock of a table. All other statements on the table queue behind that wait, so it is
short.
"""
CONNECT_SECONDS: Final = 10.0


OnStep = Callable[[str], None] | None


def _config(connection: Connection | None = None, on_step: OnStep = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["on_step"] = on_step
    return config


def knows(version: str) -> bool:
    """Whether a schema version is one of this version's steps."""
    return any(script.revision == version for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade_schema(location: DatabaseLocation, target: str = "head", *, on_step: OnStep = None) -> None:
    """Migrates a database to a version. A second process waits for the first, and then finds nothing to do.

    Args:
        on_step: is called with each version after its step.
    """
    if location.backend == "sqlite":
        _upgrade_sqlite(location, target, on_step)
    else:
        asyncio.run(_upgrade_postgres(location, target, on_step))


def _upgrade_sqlite(location: DatabaseLocation, target: str, on_step: OnStep) -> None:
    engine = create_engine(
        f"sqlite:///{location.path}", poolclass=NullPool, connect_args={"timeout": LOCK_WAIT_SECONDS}
    )
    event.listen(engine, "connect", _leave_transactions_to_us)
    # Python's sqlite3 would begin a transaction only at the first INSERT, not before DDL: the steps need the write lock
    # from the start.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        command.upgrade(_config(connection, on_step), target)


def _leave_transactions_to_us(connection: Any, record: Any) -> None:
    connection.isolation_level = None


async def _upgrade_postgres(location: DatabaseLocation, target: str, on_step: OnStep) -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        async_creator=lambda: asyncpg.connect(location.dsn, timeout=CONNECT_SECONDS, statement_cache_size=0),
    )
    async with engine.begin() as connection:
        await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS}s'"))
        # Waiting for another migration may take long; waiting for a table's lock must not, so the limit changes after
        # this.
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        await connection.execute(text(f"SET LOCAL lock_timeout = '{DDL_LOCK_WAIT_SECONDS}s'"))
        await connection.run_sync(lambda sync: command.upgrade(_config(sync, on_step), target))
    await engine.dispose()
