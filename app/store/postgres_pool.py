"""Connections to PostgreSQL: bounded in time, back by themselves after a restart, errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
from asyncpg import exceptions as driver

from app.errors import StoreUnavailable

RELEASE_SECONDS: Final = 1.0
"""A connection whose statement was cancelled gets this long to say so before it is cut off."""

_UNAVAILABLE: Final = (
    OSError,  # refused, no such socket, and every time-out
    driver.PostgresConnectionError,
    driver.InterfaceError,  # the connection went away under us
    driver.InternalClientError,
    driver.InvalidAuthorizationSpecificationError,
    driver.InvalidCatalogNameError,
    driver.InsufficientResourcesError,
    driver.OperatorInterventionError,
    driver.TransactionRollbackError,
    driver.LockNotAvailableError,
    driver.ReadOnlySQLTransactionError,  # a standby after a failover
    driver.PostgresSystemError,
)


def unavailable(error: Exception) -> Exception:
    """A driver's error as `StoreUnavailable` if it says "not now"; a fault of our own statements unchanged."""
    if not isinstance(error, _UNAVAILABLE) or isinstance(error, driver.DataError):
        return error
    reason = str(error) or type(error).__name__
    ours = StoreUnavailable(f"The database cannot be used: {reason}.", retry_after_seconds=1.0)
    ours.__cause__ = error
    return ours


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """How PostgreSQL is reached.

    `statement_cache_size` must be 0 behind a pooler in transaction mode, whose connections do not keep prepared
    statements. `timeout_seconds` bounds each wait: for a free connection, for connecting, for an answer.
    """

    pool_size: int = 10
    statement_cache_size: int = 256
    timeout_seconds: float = 5.0


class Connections:
    """A pool that is created without connecting, so that a database that is down at start may come up later."""

    def __init__(self, dsn: str, options: PostgresOptions) -> None:
        self._dsn = dsn
        self._options = options
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        seconds = self._options.timeout_seconds
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._options.pool_size,
            max_inactive_connection_lifetime=0,
            statement_cache_size=self._options.statement_cache_size,
            timeout=seconds,
            command_timeout=seconds,
            reset=_keep_session,
        )

    async def close(self) -> None:
        """Let running statements finish, then disconnect; cut off what hangs."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await pool.close()
        except _UNAVAILABLE:
            pool.terminate()

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """All rows of one statement, in one round trip.

        Raises:
            StoreUnavailable: there is no connection, or it failed, or there was no answer in time.
        """
        pool = self._open_pool()
        try:
            connection = await pool.acquire(timeout=self._options.timeout_seconds)
            try:
                return await connection.fetch(sql, *arguments)
            finally:
                await pool.release(connection, timeout=RELEASE_SECONDS)
        except _UNAVAILABLE as error:
            raise unavailable(error) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection with a transaction around it.

        Raises:
            StoreUnavailable: as for `fetch`.
        """
        pool = self._open_pool()
        try:
            connection = await pool.acquire(timeout=self._options.timeout_seconds)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await pool.release(connection, timeout=RELEASE_SECONDS)
        except _UNAVAILABLE as error:
            raise unavailable(error) from error

    def _open_pool(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise StoreUnavailable("The store is not open.")
        return self._pool


async def _keep_session(connection: Any) -> None:
    """We change nothing in a session, so there is nothing to reset: one round trip less for each statement."""
