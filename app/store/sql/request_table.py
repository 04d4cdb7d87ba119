"""Reads and writes model calls that have ended, the same way on SQLite and PostgreSQL."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from msgspec.structs import astuple

from app.conversation.api_keys import END_USER_SEPARATOR
from app.store.contract.requests import EQUAL_FIELDS, MAX_SEARCHED_RECORDS, RequestQuery, StoredRequest
from app.store.sql.limit_tables import SqlLimits
from app.store.sql.page_queries import REQUEST_CONDITIONS

_COLUMNS: Final = StoredRequest.__struct_fields__
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM requests"
_CONDITIONS: Final = {
    "started_after": "started_at >= :started_after",
    "started_before": "started_at < :started_before",
    "min_duration_ms": "duration_ms >= :min_duration_ms",
    **REQUEST_CONDITIONS,
    **{name: f"{name} = :{name}" for name in EQUAL_FIELDS},
}
_HAS_RECORD_PART: Final = f"""
    {{position}}(record, :record_part) > 0 AND started_at >= coalesce(
        (SELECT started_at FROM requests ORDER BY started_at DESC LIMIT 1 OFFSET {MAX_SEARCHED_RECORDS - 1}), -1e300)"""
PURGE_BATCH: Final = 5_000
"""How many requests one statement deletes: other writers wait for it."""
ERASE_REQUESTS: Final = "DELETE FROM requests WHERE conversation_id = :conversation_id"


class SqlRequests(SqlLimits):
    """The part of `Store` that is `RequestStore`."""

    async def add_requests(self, requests: Sequence[StoredRequest]) -> None:
        if not requests:
            return
        values = itertools.chain.from_iterable(map(astuple, requests))
        await self._execute_write(_build_insert(len(requests), self._dialect.placeholder), tuple(values))

    async def list_requests(self, query: RequestQuery) -> list[StoredRequest]:
        values = {name: value for name in _CONDITIONS if (value := getattr(query, name)) is not None}
        conditions = [_CONDITIONS[name] for name in values]
        if query.is_failed is not None:
            conditions.append("error IS NOT NULL" if query.is_failed else "error IS NULL")
        if query.record_part is not None:
            conditions.append(_HAS_RECORD_PART.format(position=self._dialect.position_function))
            values |= {"record_part": query.record_part}
        if query.after is not None:
            conditions.append("(started_at, id) < (:after_time, :after_id)")
            values |= {"after_time": query.after[0], "after_id": query.after[1]}
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        text = f"{_SELECT} {where} ORDER BY started_at DESC, id DESC LIMIT :limit"
        return [StoredRequest(*row) for row in await self._read_rows(text, **values, limit=query.limit)]

    async def find_request(self, request_id: str) -> StoredRequest | None:
        rows = await self._read_rows(f"{_SELECT} WHERE id = :id", id=request_id)
        return StoredRequest(*rows[0]) if rows else None

    async def purge_requests(self, *, before: float, tenant: str | None = None) -> int:
        values: dict[str, Any] = {"before": before, "limit": PURGE_BATCH}
        of_tenant = ""
        if tenant is not None:
            prefix = f"{tenant}{END_USER_SEPARATOR}"
            of_tenant = "AND (tenant = :tenant OR substr(tenant, 1, :prefix_length) = :prefix)"
            values |= {"tenant": tenant, "prefix": prefix, "prefix_length": len(prefix)}
        text = f"""
            DELETE FROM requests WHERE id IN (
                SELECT id FROM requests WHERE started_at < :before {of_tenant} LIMIT :limit)
            RETURNING 1"""
        purged = 0
        while count := len(await self._write_rows(text, **values)):
            purged += count
        return purged


@cache
def _build_insert(count: int, placeholder: str) -> str:
    numbers = itertools.count(1)
    rows = [f"({', '.join(f'{placeholder}{next(numbers)}' for _ in _COLUMNS)})" for _ in range(count)]
    return f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES {', '.join(rows)} ON CONFLICT (id) DO NOTHING"
