"""Reads and writes the tables beside logs, the same way on SQLite and PostgreSQL: stored completions, idempotency keys,
API keys, server secrets, sums of usage, and pages of conversations.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from app.conversation.api_keys import ApiKey
from app.conversation.conversation_types import Conversation, StoredCompletion
from app.store.contract.conversations import CompletionQuery, ConversationQuery
from app.store.contract.keys import IdempotencyKeyRecord
from app.store.contract.usage import UsageGrouping, UsageQuery, UsageTotals
from app.store.sql import page_queries
from app.store.sql.dialects import Rows, SqlDialect
from app.store.sql.rows import (
    API_KEY_COLUMNS,
    COMPLETION_COLUMNS,
    USAGE_COLUMNS,
    USAGE_KEY_COLUMNS,
    USAGE_SUM_COLUMNS,
    decode_conversation,
    decode_struct,
    decode_time,
    encode_json,
    encode_struct,
)

_IS_COMPLETION: Final = "tenant = :tenant AND id = :id"
# A claim succeeds if there is no row, if the row has expired, or if the same holder renews its own running claim.
_CLAIM_IDEMPOTENCY_KEY: Final = """
    INSERT INTO request_keys (tenant, key, digest, holder, state, kept_seconds, expires_at)
    VALUES (:tenant, :key, :digest, :holder, 'running', :kept_seconds, {expires_at})
    ON CONFLICT (tenant, key) DO UPDATE
    SET digest = excluded.digest, holder = excluded.holder, state = excluded.state, conversation_id = NULL, seq = NULL,
        kept_seconds = excluded.kept_seconds, expires_at = excluded.expires_at
    WHERE request_keys.expires_at <= {now}
        OR (request_keys.holder = excluded.holder AND request_keys.digest = excluded.digest
            AND request_keys.state = 'running')
    RETURNING 1"""
_IS_RUNNING_CLAIM: Final = "tenant = :tenant AND key = :key AND holder = :holder AND state = 'running'"
_ADD_USAGE: Final = f"""
    INSERT INTO usage_totals ({", ".join(USAGE_COLUMNS)}) VALUES {{rows}}
    ON CONFLICT ({", ".join(USAGE_KEY_COLUMNS)}) DO UPDATE
    SET {", ".join(f"{name} = usage_totals.{name} + excluded.{name}" for name in USAGE_SUM_COLUMNS)}"""
_USAGE_GROUP_COLUMNS: Final[Mapping[UsageGrouping, tuple[str, ...]]] = {
    "tenant": ("tenant",),
    "key": ("tenant", "key_id"),
    "model": ("model",),
    "day": ("day",),
}
_CLAIM_ATTEMPTS: Final = 3
"""Between the attempt to claim a key and the read of its row, the holder may release it: then the claim is tried
again.
"""


class SqlSideTables(ABC):
    """The part of `Store` that does not touch logs. Each method is one statement, where a race allows it."""

    deadline_sql = "{}"
    """SQL for a time that `_encode_deadline` returns, with a place for its parameter. PostgreSQL adds seconds to its
    own clock.
    """

    def __init__(self, dialect: SqlDialect, *, clock: Callable[[], datetime]) -> None:
        self._dialect = dialect
        self._clock = clock

    @abstractmethod
    async def _execute_read(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        """Runs a statement that only reads, and returns its rows."""

    @abstractmethod
    async def _execute_write(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        """Runs a statement that writes, and returns its rows."""

    async def _read_rows(self, text: str, /, **values: Any) -> Rows:
        """As `_execute_read`, for SQL with `:name` parameters."""
        return await self._execute_read(*self._dialect.build_statement(text, **values))

    async def _write_rows(self, text: str, /, **values: Any) -> Rows:
        """As `_execute_write`, for SQL with `:name` parameters."""
        return await self._execute_write(*self._dialect.build_statement(text, **values))

    def _encode_time_after(self, after_seconds: float = 0) -> Any:
        return self._dialect.encode_time(self._clock() + timedelta(seconds=after_seconds))

    def _encode_deadline(self, after_seconds: float = 0) -> Any:
        """Returns the time in `after_seconds`, by the clock that decides when a claim has ended. All processes must
        share that clock.
        """
        return self._encode_time_after(after_seconds)

    async def list_conversations(self, *, tenant: str | None, query: ConversationQuery) -> list[Conversation]:
        rows = await self._execute_read(*page_queries.build_conversations_query(self._dialect, tenant, query))
        return [decode_conversation(row) for row in rows]

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        rows = await self._execute_read(*page_queries.build_completions_query(self._dialect, tenant, query))
        return [decode_struct(StoredCompletion, row) for row in rows]

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        text = f"SELECT {', '.join(COMPLETION_COLUMNS)} FROM completions WHERE {_IS_COMPLETION}"
        rows = await self._read_rows(text, tenant=tenant, id=completion_id)
        return decode_struct(StoredCompletion, rows[0]) if rows else None

    async def replace_completion_metadata(
        self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]
    ) -> bool:
        text = f"UPDATE completions SET metadata = :metadata WHERE {_IS_COMPLETION} RETURNING 1"
        described = encode_json(metadata)
        return bool(await self._write_rows(text, metadata=described, tenant=tenant, id=completion_id))

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        text = f"DELETE FROM completions WHERE {_IS_COMPLETION} RETURNING 1"
        return bool(await self._write_rows(text, tenant=tenant, id=completion_id))

    async def claim_idempotency_key(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> IdempotencyKeyRecord:
        claim = self._dialect.build_statement(
            _CLAIM_IDEMPOTENCY_KEY.format(
                expires_at=self.deadline_sql.format(":expires_at"), now=self.deadline_sql.format(":now")
            ),
            tenant=tenant,
            key=key,
            digest=digest,
            holder=holder,
            kept_seconds=math.ceil(kept_seconds),
            expires_at=self._encode_deadline(seconds),
            now=self._encode_deadline(),
        )
        look = self._dialect.build_statement(
            "SELECT digest, state, conversation_id, seq FROM request_keys WHERE tenant = :tenant AND key = :key",
            tenant=tenant,
            key=key,
        )
        for _ in range(_CLAIM_ATTEMPTS):
            if await self._execute_write(*claim):
                return IdempotencyKeyRecord("claimed")
            rows = await self._execute_read(*look)
            if rows:
                known, state, conversation_id, seq = rows[0]
                return (
                    IdempotencyKeyRecord(state, conversation_id, seq)
                    if known == digest
                    else IdempotencyKeyRecord("differs")
                )
        # Other requests claim and release the key faster than it can be read: one of them is running.
        return IdempotencyKeyRecord("running")

    async def complete_idempotency_key(
        self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int
    ) -> None:
        ours = {"tenant": tenant, "key": key, "holder": holder}
        # kept_seconds is read first: on SQLite, Python computes the deadline. If the claim ends between the statements,
        # the UPDATE finds no row.
        rows = await self._read_rows(f"SELECT kept_seconds FROM request_keys WHERE {_IS_RUNNING_CLAIM}", **ours)
        if not rows:
            return
        text = f"""
            UPDATE request_keys
            SET state = 'done', conversation_id = :conversation_id, seq = :seq,
                expires_at = {self.deadline_sql.format(":expires_at")}
            WHERE {_IS_RUNNING_CLAIM}"""
        answer = {"conversation_id": conversation_id, "seq": seq, "expires_at": self._encode_deadline(rows[0][0])}
        await self._write_rows(text, **ours, **answer)

    async def release_idempotency_key(self, *, tenant: str, key: str, holder: str) -> None:
        text = f"DELETE FROM request_keys WHERE {_IS_RUNNING_CLAIM}"
        await self._write_rows(text, tenant=tenant, key=key, holder=holder)

    async def purge_idempotency_keys(self) -> int:
        text = f"DELETE FROM request_keys WHERE expires_at <= {self.deadline_sql.format(':now')} RETURNING 1"
        return len(await self._write_rows(text, now=self._encode_deadline()))

    async def add_api_key(self, key: ApiKey) -> None:
        marks = ", ".join(f":{name}" for name in API_KEY_COLUMNS)
        text = f"INSERT INTO api_keys ({', '.join(API_KEY_COLUMNS)}) VALUES ({marks})"
        await self._write_rows(text, **encode_struct(key, self._dialect.encode_time))

    async def find_api_key(self, digest: str) -> ApiKey | None:
        text = f"SELECT {', '.join(API_KEY_COLUMNS)} FROM api_keys WHERE digest = :digest"
        rows = await self._read_rows(text, digest=digest)
        return decode_struct(ApiKey, rows[0]) if rows else None

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        select = f"SELECT {', '.join(API_KEY_COLUMNS)} FROM api_keys"
        order = "ORDER BY created_at, id"
        if tenant is None:
            rows = await self._read_rows(f"{select} {order}")
        else:
            rows = await self._read_rows(f"{select} WHERE tenant = :tenant {order}", tenant=tenant)
        return [decode_struct(ApiKey, row) for row in rows]

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        text = f"""
            UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now) WHERE id = :id
            RETURNING {", ".join(API_KEY_COLUMNS)}"""
        rows = await self._write_rows(text, id=key_id, now=self._encode_time_after())
        return decode_struct(ApiKey, rows[0]) if rows else None

    async def set_api_key_budget(self, key_id: str, budget_usd: float | None) -> ApiKey | None:
        text = f"UPDATE api_keys SET budget_usd = :budget_usd WHERE id = :id RETURNING {', '.join(API_KEY_COLUMNS)}"
        rows = await self._write_rows(text, id=key_id, budget_usd=budget_usd)
        return decode_struct(ApiKey, rows[0]) if rows else None

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        look = self._dialect.build_statement("SELECT value FROM server_secrets WHERE name = :name", name=name)
        rows = await self._execute_read(*look)
        if not rows:
            # Two processes may propose at once: the first INSERT stays, and both read that value.
            text = "INSERT INTO server_secrets (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
            await self._write_rows(text, name=name, value=proposed)
            rows = await self._execute_read(*look)
        return str(rows[0][0])

    async def add_tombstone(self, *, root: str, family_id: str) -> None:
        text = """
            INSERT INTO tombstones (root, family_id, erased_at) VALUES (:root, :family_id, :now)
            ON CONFLICT (root, family_id) DO UPDATE SET erased_at = excluded.erased_at"""
        await self._write_rows(text, root=root, family_id=family_id, now=self._encode_time_after())

    async def find_tombstone(self, *, root: str, family_id: str) -> datetime | None:
        text = "SELECT erased_at FROM tombstones WHERE root = :root AND family_id = :family_id"
        rows = await self._read_rows(text, root=root, family_id=family_id)
        return decode_time(rows[0][0]) if rows else None

    async def add_usage(self, totals: Sequence[UsageTotals]) -> None:
        if not totals:
            return
        # All processes write the same rows. In one order, they cannot wait for each other in a circle.
        ordered = sorted(totals, key=lambda row: (row.tenant, row.key_id, row.day, row.model))
        values = {f"{name}_{index}": getattr(row, name) for index, row in enumerate(ordered) for name in USAGE_COLUMNS}
        rows = ", ".join(
            f"({', '.join(f':{name}_{index}' for name in USAGE_COLUMNS)})" for index in range(len(ordered))
        )
        await self._write_rows(_ADD_USAGE.format(rows=rows), **values)

    async def sum_usage(self, query: UsageQuery) -> list[UsageTotals]:
        columns = dict.fromkeys((*_USAGE_GROUP_COLUMNS[query.by], *(["day"] if query.is_daily else [])))
        group = ", ".join(columns)
        selected = [name if name in columns else "''" for name in USAGE_KEY_COLUMNS]
        # The sum of integers is `numeric` on PostgreSQL.
        selected += [f"CAST(sum({name}) AS BIGINT)" for name in USAGE_SUM_COLUMNS if name != "cost_usd"]
        filters = {"tenant": query.tenant, "key_id": query.key_id, "limit": query.limit}
        values = {"since_day": query.since_day, **{name: one for name, one in filters.items() if one is not None}}
        conditions = "".join(f" AND {name} = :{name}" for name in ("tenant", "key_id") if name in values)
        text = f"""
            SELECT {", ".join(selected)}, sum(cost_usd) FROM usage_totals WHERE day >= :since_day{conditions}
            GROUP BY {group} ORDER BY sum(cost_usd) DESC, {group}{" LIMIT :limit" if "limit" in values else ""}"""
        return [UsageTotals(*row) for row in await self._read_rows(text, **values)]

    async def purge_usage(self, *, before_day: str, tenant: str | None = None) -> int:
        text = "DELETE FROM usage_totals WHERE day < :before_day"
        if tenant is None:
            return len(await self._write_rows(f"{text} RETURNING 1", before_day=before_day))
        text = f"{text} AND tenant = :tenant RETURNING 1"
        return len(await self._write_rows(text, before_day=before_day, tenant=tenant))
