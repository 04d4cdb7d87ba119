"""Connections to PostgreSQL: every wait is bounded, connections come back after a restart of the server, and driver
errors become `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg import exceptions as driver

from app.errors import StoreUnavailable

AsyncpgPool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

RELEASE_SECONDS: Final = 1.0
"""How long a connection may take to confirm that its statement is cancelled; then it is closed."""

_LOST_STATEMENT_ERRORS: Final = (driver.InvalidSQLStatementNameError, driver.DuplicatePreparedStatementError)
"""The statement was prepared on another connection of the server: a pooler in transaction mode stands between."""
# Errors that say "not now". Others are mistakes in our statements and stay as they are.
_UNAVAILABLE_ERRORS: Final = (
    *_LOST_STATEMENT_ERRORS,
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


def translate_driver_error(error: Exception) -> Exception:
    """Returns `StoreUnavailable` for a driver's error that says "not now"; an error of our own statements unchanged."""
    # DataError says that an argument does not fit its parameter: a mistake of ours, whatever it derives from.
    if not isinstance(error, _UNAVAILABLE_ERRORS) or isinstance(error, driver.DataError):
        return error
    if isinstance(error, _LOST_STATEMENT_ERRORS):
        pooled = StoreUnavailable(
            "The database cannot be used: a pooler switches connections, so prepared statements are lost.",
            hint="Set `database.statement_cache_size: 0`.",
            retry_after_seconds=1.0,
        )
        pooled.__cause__ = error
        return pooled
    reason = str(error) or type(error).__name__
    translated = StoreUnavailable(f"The database cannot be used: {reason}.", retry_after_seconds=1.0)
    translated.__cause__ = error
    return translated


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """How PostgreSQL is reached.

    `statement_cache_size` must be 0 behind a pooler in transaction mode, whose connections do not keep prepared
    statements. `timeout_seconds` bounds each wait: for a free connection, for connecting, for an answer.
    """

    pool_size: int = 10
    statement_cache_size: int = 256
    timeout_seconds: float = 5.0


class PostgresPool:
    """A pool that is created without connecting, so that the process can start while the database is down."""

    def __init__(self, dsn: str, options: PostgresOptions) -> None:
        self._dsn = dsn
        self._options = options
        self._pool: AsyncpgPool | None = None
        self._demand_count = 0
        """Connections that are in use or waited for."""

    async def open(self) -> None:
        seconds = self._options.timeout_seconds
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._options.pool_size,
            # Idle connections stay open: asyncpg would set a timer at each release, and connecting again is slow.
            max_inactive_connection_lifetime=0,
            statement_cache_size=self._options.statement_cache_size,
            timeout=seconds,
            command_timeout=seconds,
            init=_force_generic_plans if self._options.statement_cache_size else None,
            reset=_skip_session_reset,
        )

    async def close(self) -> None:
        """Lets running statements finish, then disconnects. After `timeout_seconds`, closes what is still running."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await pool.close()
        except _UNAVAILABLE_ERRORS:
            pool.terminate()

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """Runs one statement in one round trip, and returns all its rows.

        Raises:
            StoreUnavailable: there is no connection, or it failed, or there was no answer in time.
        """
        rows: list[Any] = await self._run_on_connection(lambda connection: connection.fetch(sql, *arguments))
        return rows

    async def execute_all(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs a statement with each tuple of arguments, all in one transaction and one round trip.

        Raises:
            StoreUnavailable: as for `fetch`.
        """
        # One row needs no explicit transaction.
        if len(rows) == 1:
            await self._run_on_connection(lambda connection: connection.fetch(sql, *rows[0]))
        else:
            await self._run_on_connection(lambda connection: connection.executemany(sql, rows))

    async def _run_on_connection(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        pool = self._require_open_pool()
        try:
            connection = await self._acquire(pool)
            try:
                answer = await operation(connection)
            # Also after a cancellation: the connection must go back to the pool, which then has to cancel the running
            # statement.
            except BaseException:
                await self._release(pool, connection, RELEASE_SECONDS)
                raise
            await self._release(pool, connection, None)
        except _UNAVAILABLE_ERRORS as error:
            raise translate_driver_error(error) from error
        return answer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Holds a connection with an open transaction.

        Raises:
            StoreUnavailable: as for `fetch`.
        """
        pool = self._require_open_pool()
        try:
            connection = await self._acquire(pool)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await self._release(pool, connection, RELEASE_SECONDS)
        except _UNAVAILABLE_ERRORS as error:
            raise translate_driver_error(error) from error

    async def _acquire(self, pool: AsyncpgPool) -> Any:
        # Only the wait for another task's connection needs a timer here: a timer for each statement costs more than the
        # rest of the pool, and connecting has its own.
        self._demand_count += 1
        try:
            if self._demand_count <= self._options.pool_size:
                return await pool.acquire()
            return await pool.acquire(timeout=self._options.timeout_seconds)
        except BaseException:
            self._demand_count -= 1
            raise

    async def _release(self, pool: AsyncpgPool, connection: Any, timeout_seconds: float | None) -> None:
        try:
            await pool.release(connection, timeout=timeout_seconds)
        finally:
            self._demand_count -= 1

    def _require_open_pool(self) -> AsyncpgPool:
        if self._pool is None:
            raise StoreUnavailable("The store is not open.")
        return self._pool


async def _force_generic_plans(connection: Any) -> None:
    """Makes PostgreSQL plan each prepared statement once, and by index.

    By default PostgreSQL plans the larger statements again for every call, which takes longer than running them.
    Statements that were planned while the tables were nearly empty scan whole tables until the tables are analyzed.
    """
    await connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")


async def _skip_session_reset(connection: Any) -> None:
    """Replaces the driver's reset of a session, which is one round trip for each statement. The store changes nothing
    in a session, so no reset is needed.
    """
