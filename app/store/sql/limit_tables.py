"""Reservations of budgets and counts of rates, the same way on SQLite and PostgreSQL.

On PostgreSQL a lock of the key, or of the widest scope, stands before the statement that decides: the sums that the
statement reads are then those of all calls that were admitted before. SQLite has one writer.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from app.store.contract.limits import RATE_WINDOW_SECONDS, BudgetReservation, BudgetUse, RateCount, RateLimit, RateUse
from app.store.sql.dialects import TransactionSteps
from app.store.sql.side_tables import SqlSideTables

Result = TypeVar("Result")

_SPENT: Final = "SELECT coalesce(sum(cost_usd), 0.0) FROM usage_totals WHERE key_id = :key_id AND day >= :since_day"
_RESERVED: Final = """
    SELECT coalesce(sum(usd), 0.0) FROM budget_reservations WHERE key_id = :key_id AND expires_at > {now}"""
_RESERVE: Final = f"""
    INSERT INTO budget_reservations (id, key_id, holder, usd, expires_at)
    SELECT :id, :key_id, :holder, CAST(:usd AS DOUBLE PRECISION), {{expires_at}}
    WHERE ({_SPENT}) + ({_RESERVED}) + :usd <= :budget_usd
    RETURNING 1"""
_ASKED: Final = """
    WITH asked (place, scope, most_requests, most_tokens) AS (VALUES {limits}),
    used AS (
        SELECT place, asked.scope, most_requests, most_tokens, coalesce(sum(requests), 0) AS requests,
            coalesce(sum(tokens), 0) AS tokens, min(second) AS first_second, max(second) AS last_second
        FROM asked LEFT JOIN rate_counts ON rate_counts.scope = asked.scope AND second >= {now} - :window
        GROUP BY place, asked.scope, most_requests, most_tokens
    )"""
_COUNT_CALL: Final = f"""
    {_ASKED}
    INSERT INTO rate_counts (scope, second, requests, tokens)
    SELECT scope, {{now}}, 1, CAST(:tokens AS BIGINT) FROM used
    WHERE NOT EXISTS (
        SELECT 1 FROM used
        WHERE requests + 1 > most_requests
            OR tokens + (CASE WHEN :tokens < most_tokens THEN :tokens ELSE most_tokens END) > most_tokens
    )
    ON CONFLICT (scope, second) DO UPDATE
    SET requests = rate_counts.requests + 1, tokens = rate_counts.tokens + excluded.tokens
    RETURNING second"""
_READ_USES: Final = f"""
    {_ASKED}
    SELECT CAST(requests AS BIGINT), CAST(tokens AS BIGINT), coalesce(first_second - {{now}}, 0),
        coalesce(last_second - {{now}}, 0)
    FROM used ORDER BY place"""
_LIMIT_TYPES: Final = {"place": "BIGINT", "scope": "TEXT", "most_requests": "BIGINT", "most_tokens": "BIGINT"}


class SqlLimits(SqlSideTables):
    """The part of `Store` that is `LimitStore`."""

    second_sql = "{}"
    """SQL for the second of an epoch time that `_encode_second` returns, with a place for its parameter."""

    @abstractmethod
    def _run_transaction(
        self, make_steps: Callable[[], TransactionSteps[Result]], *, exclusive_root: str | None = None
    ) -> Awaitable[Result]:
        """Runs the steps of a transaction, and returns their result.

        Args:
            make_steps: is called again if the transaction has to run again.
            exclusive_root: if given, no other transaction with the same root runs meanwhile. Two that lock rows of a
                family in different orders would wait for each other.
        """

    def _encode_second(self) -> int:
        return int(self._clock().timestamp())

    async def reserve_budget(
        self, reservation: BudgetReservation, *, budget_usd: float, since_day: str, seconds: float
    ) -> BudgetUse:
        text = _RESERVE.format(expires_at=self.deadline_sql.format(":expires_at"), now=self.deadline_sql.format(":now"))
        insert = self._dialect.build_statement(
            text,
            id=reservation.id,
            key_id=reservation.key_id,
            holder=reservation.holder,
            usd=reservation.usd,
            budget_usd=budget_usd,
            since_day=since_day,
            expires_at=self._encode_deadline(seconds),
            now=self._encode_deadline(),
        )

        def steps() -> TransactionSteps[bool]:
            return bool((yield insert))

        is_granted = await self._run_transaction(steps, exclusive_root=f"budget of {reservation.key_id}")
        if is_granted:
            return BudgetUse(0.0, reservation.usd, is_granted=True)
        return await self.read_budget_use(key_id=reservation.key_id, since_day=since_day)

    async def read_budget_use(self, *, key_id: str, since_day: str) -> BudgetUse:
        text = f"SELECT ({_SPENT}), ({_RESERVED.format(now=self.deadline_sql.format(':now'))})"
        rows = await self._read_rows(text, key_id=key_id, since_day=since_day, now=self._encode_deadline())
        return BudgetUse(*rows[0])

    async def release_reservations(self, ids: Sequence[str]) -> None:
        values = {f"id_{index}": reservation_id for index, reservation_id in enumerate(ids)}
        marks = ", ".join(f":{name}" for name in values)
        await self._write_rows(f"DELETE FROM budget_reservations WHERE id IN ({marks}) RETURNING 1", **values)

    async def renew_reservations(self, *, holder: str, seconds: float) -> None:
        text = f"""
            UPDATE budget_reservations SET expires_at = {self.deadline_sql.format(":expires_at")}
            WHERE holder = :holder RETURNING 1"""
        await self._write_rows(text, holder=holder, expires_at=self._encode_deadline(seconds))

    async def count_call(self, limits: Sequence[RateLimit], *, tokens: int) -> RateCount:
        asked = [(index, limit.scope, limit.requests, limit.tokens) for index, limit in enumerate(limits)]
        values: dict[str, Any] = {
            f"{name}_{row[0]}": value for row in asked for name, value in zip(_LIMIT_TYPES, row, strict=True)
        }
        values |= {"window": RATE_WINDOW_SECONDS, "second": self._encode_second()}
        rows = ", ".join(
            f"({', '.join(f'CAST(:{name}_{index} AS {kind})' for name, kind in _LIMIT_TYPES.items())})"
            for index in range(len(limits))
        )
        now = self.second_sql.format(":second")
        count = self._dialect.build_statement(_COUNT_CALL.format(limits=rows, now=now), **values, tokens=tokens)
        read = self._dialect.build_statement(_READ_USES.format(limits=rows, now=now), **values)

        def steps() -> TransactionSteps[RateCount]:
            counted = yield count
            uses = tuple(
                RateUse(requests, used_tokens, *(end + RATE_WINDOW_SECONDS + 1 if requests else 0 for end in ends))
                for requests, used_tokens, *ends in (yield read)
            )
            return RateCount(counted[0][0] if counted else None, uses)

        return await self._run_transaction(steps, exclusive_root=f"rate of {limits[0].scope}")

    async def correct_tokens(self, scopes: Sequence[str], *, counted_at: int, added_tokens: int) -> None:
        values = {f"scope_{index}": scope for index, scope in enumerate(scopes)}
        marks = ", ".join(f":{name}" for name in values)
        text = f"""
            UPDATE rate_counts SET tokens = tokens + CAST(:added_tokens AS BIGINT)
            WHERE second = CAST(:second AS BIGINT) AND scope IN ({marks}) RETURNING 1"""
        await self._write_rows(text, **values, second=counted_at, added_tokens=added_tokens)

    async def purge_limits(self) -> None:
        now = self.deadline_sql.format(":now")
        text = f"DELETE FROM budget_reservations WHERE expires_at <= {now} RETURNING 1"
        await self._write_rows(text, now=self._encode_deadline())
        text = f"DELETE FROM rate_counts WHERE second < {self.second_sql.format(':second')} - :window RETURNING 1"
        await self._write_rows(text, second=self._encode_second(), window=RATE_WINDOW_SECONDS)
