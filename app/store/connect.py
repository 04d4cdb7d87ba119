"""Which store a database URL means."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from app.errors import StoreUnavailable
from app.store.base import Store
from app.store.location import location_of
from app.store.memory import MemoryStore
from app.store.postgres import PostgresStore
from app.store.postgres_pool import PostgresOptions
from app.store.sqlite import SqliteStore
from app.store.sqlite_lanes import SqliteOptions


def utc_now() -> datetime:
    return datetime.now(UTC)


def open_store(
    url: str,
    *,
    synchronous: Literal["normal", "full"] = "normal",
    timeout_seconds: float = 5.0,
    pool_size: int = 10,
    statement_cache_size: int = 256,
    clock: Callable[[], datetime] = utc_now,
) -> Store:
    """The store that a URL means, not yet connected: `Store.open` does that.

    Args:
        url: see `store.location.location_of`.
        synchronous: SQLite: see `SqliteOptions`.
        timeout_seconds: the longest wait for SQLite's write lock, for a PostgreSQL connection, for an answer.
        pool_size: PostgreSQL: connections of this process.
        statement_cache_size: PostgreSQL: 0 behind a pooler in transaction mode.

    Raises:
        ValueError: the URL is none of the accepted forms.
        StoreUnavailable: the directory of the SQLite file cannot be made.
    """
    location = location_of(url)
    if location.backend == "memory":
        return MemoryStore(clock=clock)
    if location.backend == "postgresql":
        options = PostgresOptions(
            pool_size=pool_size, statement_cache_size=statement_cache_size, timeout_seconds=timeout_seconds
        )
        return PostgresStore(location.dsn, clock=clock, options=options)
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"The directory of {str(location.path)!r} cannot be made: {error}.") from error
    return SqliteStore(
        location.path,
        clock=clock,
        options=SqliteOptions("FULL" if synchronous == "full" else "NORMAL", busy_timeout_seconds=timeout_seconds),
    )
