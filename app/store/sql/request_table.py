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
from app.store.sql.page_queries import REQUEST_CONDITIONS, PageQuery

_COLUMNS: Final = StoredRequest.__struct_fields__
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
        page = PageQuery(self._dialect, None)
        page.add_filters(query, _CONDITIONS)
        if query.is_failed is not None:
            page.add_condition("error IS NOT NULL" if query.is_failed else "error IS NULL")
        has_record_part = _HAS_RECORD_PART.format(position=self._dialect.position_function)
        page.add_filters(query, {"record_part": has_record_part})
        statement = page.build_query(
            _COLUMNS, "requests", after=query.after, descending=True, limit=query.limit, order_by="started_at"
        )
        return [StoredRequest(*row) for row in await self._execute_read(*statement)]

    async def find_request(self, request_id: str) -> StoredRequest | None:
        rows = await self._read_rows(f"SELECT {', '.join(_COLUMNS)} FROM requests WHERE id = :id", id=request_id)
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
    width = len(_COLUMNS)
    marks = [f"{placeholder}{number}" for number in range(1, count * width + 1)]
    rows = [f"({', '.join(marks[first : first + width])})" for first in range(0, len(marks), width)]
    return f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES {', '.join(rows)} ON CONFLICT (id) DO NOTHING"
