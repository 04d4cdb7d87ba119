"""Creates the store that a database URL names. It imports only that store's driver: a process needs one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from typing import Final, Literal

from app.errors import StoreUnavailable
from app.store.contract.store import Store
from app.store.database_url import DatabaseLocation, parse_database_url

read_utc_now: Final[Callable[[], datetime]] = functools.partial(datetime.now, UTC)


def create_store(
    url: str,
    *,
    synchronous: Literal["normal", "full"] = "normal",
    timeout_seconds: float = 5.0,
    pool_size: int = 10,
    statement_cache_size: int = 256,
    clock: Callable[[], datetime] = read_utc_now,
) -> Store:
    """Creates the store that a URL names. It is not connected yet: `Store.open` connects.

    Args:
        url: see `store.database_url.parse_database_url`.
        synchronous: SQLite: see `SqliteOptions`.
        timeout_seconds: the longest wait for SQLite's write lock, for a PostgreSQL connection, for an answer.
        pool_size: PostgreSQL: connections of this process.
        statement_cache_size: PostgreSQL: 0 behind a pooler in transaction mode.

    Raises:
        ValueError: the URL is none of the accepted forms.
        StoreUnavailable: the directory of the SQLite file cannot be made.
    """
    location = parse_database_url(url)
    if location.backend == "memory":
        in_memory: Store = _import_store_module("sqlite.memory_store").SqliteMemoryStore(clock=clock)
        return in_memory
    if location.backend == "postgresql":
        options = _import_store_module("postgres.pool").PostgresOptions(
            pool_size=pool_size, statement_cache_size=statement_cache_size, timeout_seconds=timeout_seconds
        )
        on_server: Store = _import_store_module("postgres.backend").PostgresStore(
            location.dsn, clock=clock, options=options
        )
        return on_server
    return _create_sqlite_store(location, synchronous, timeout_seconds, clock)


def _create_sqlite_store(
    location: DatabaseLocation,
    synchronous: Literal["normal", "full"],
    timeout_seconds: float,
    clock: Callable[[], datetime],
) -> Store:
    try:
        _import_store_module("sqlite.threads").create_private_file(location.path)
    except OSError as error:
        raise StoreUnavailable(f"{str(location.path)!r} cannot be made: {error}.") from error
    options = _import_store_module("sqlite.threads").SqliteOptions(
        "FULL" if synchronous == "full" else "NORMAL", busy_timeout_seconds=timeout_seconds
    )
    in_file: Store = _import_store_module("sqlite.backend").SqliteStore(location.path, clock=clock, options=options)
    return in_file


def _import_store_module(name: str) -> ModuleType:
    return importlib.import_module(f"app.store.{name}")
