"""What is kept beside logs, the same on SQLite and PostgreSQL: lists, stored completions, keys, secrets."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from app.conversation.api_keys import ApiKey
from app.conversation.messages import Conversation, StoredCompletion
from app.store.contract import CompletionQuery, ListQuery, RequestKey
from app.store.sql import list_pages
from app.store.sql.rows import (
    COMPLETION_COLUMNS,
    KEY_COLUMNS,
    as_json,
    completion_of,
    completion_values,
    conversation_of,
    key_of,
    key_values,
)
from app.store.sql.transactions import Dialect, Rows

_COMPLETION: Final = "tenant = :tenant AND id = :id"
_KEEP: Final = f"""
    INSERT INTO completions ({", ".join(COMPLETION_COLUMNS)})
    VALUES ({", ".join(f":{name}" for name in COMPLETION_COLUMNS)})
    ON CONFLICT (tenant, id) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in COMPLETION_COLUMNS)}"""
_CLAIM: Final = """
    INSERT INTO request_keys (tenant, key, digest, holder, state, kept_seconds, expires_at)
    VALUES (:tenant, :key, :digest, :holder, 'running', :kept_seconds, {expires_at})
    ON CONFLICT (tenant, key) DO UPDATE
    SET digest = excluded.digest, holder = excluded.holder, state = excluded.state, conversation_id = NULL, seq = NULL,
        kept_seconds = excluded.kept_seconds, expires_at = excluded.expires_at
    WHERE request_keys.expires_at <= {now}
        OR (request_keys.holder = excluded.holder AND request_keys.digest = excluded.digest
            AND request_keys.state = 'running')
    RETURNING 1"""
_RUNNING: Final = "tenant = :tenant AND key = :key AND holder = :holder AND state = 'running'"
_CLAIM_ATTEMPTS: Final = 3
"""A key may be given up between the attempt to claim it and the look at who has it."""


class Desk(ABC):
    """The part of `Store` that knows nothing of logs; each method is one statement, where a race allows it."""

    due = "{}"
    """SQL for the moment that a parameter of `_due` means."""

    def __init__(self, dialect: Dialect, *, clock: Callable[[], datetime]) -> None:
        self._dialect = dialect
        self._clock = clock

    @abstractmethod
    async def _ask(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        """The rows of a statement that only reads."""

    @abstractmethod
    async def _tell(self, sql: str, arguments: tuple[Any, ...]) -> Rows:
        """The rows of a statement that writes."""

    def _now(self, after_seconds: float = 0) -> Any:
        return self._dialect.moment(self._clock() + timedelta(seconds=after_seconds))

    def _due(self, after_seconds: float = 0) -> Any:
        """So many seconds from now, by the clock that decides when a claim has ended: all processes must share it."""
        return self._now(after_seconds)

    async def conversations(self, *, tenant: str | None, query: ListQuery) -> list[Conversation]:
        rows = await self._ask(*list_pages.conversations(self._dialect, tenant, query))
        return [conversation_of(row) for row in rows]

    async def keep_completion(self, completion: StoredCompletion) -> None:
        values = completion_values(completion, self._dialect.moment(completion.created_at))
        await self._tell(*self._dialect.say(_KEEP, **values))

    async def completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        rows = await self._ask(*list_pages.completions(self._dialect, tenant, query))
        return [completion_of(row) for row in rows]

    async def completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        text = f"SELECT {', '.join(COMPLETION_COLUMNS)} FROM completions WHERE {_COMPLETION}"
        rows = await self._ask(*self._dialect.say(text, tenant=tenant, id=completion_id))
        return completion_of(rows[0]) if rows else None

    async def describe_completion(self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]) -> bool:
        text = f"UPDATE completions SET metadata = :metadata WHERE {_COMPLETION} RETURNING 1"
        described = as_json(metadata)
        return bool(await self._tell(*self._dialect.say(text, metadata=described, tenant=tenant, id=completion_id)))

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        text = f"DELETE FROM completions WHERE {_COMPLETION} RETURNING 1"
        return bool(await self._tell(*self._dialect.say(text, tenant=tenant, id=completion_id)))

    async def claim_request(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> RequestKey:
        claim = self._dialect.say(
            _CLAIM.format(expires_at=self.due.format(":expires_at"), now=self.due.format(":now")),
            tenant=tenant,
            key=key,
            digest=digest,
            holder=holder,
            kept_seconds=math.ceil(kept_seconds),
            expires_at=self._due(seconds),
            now=self._due(),
        )
        look = self._dialect.say(
            "SELECT digest, state, conversation_id, seq FROM request_keys WHERE tenant = :tenant AND key = :key",
            tenant=tenant,
            key=key,
        )
        for _ in range(_CLAIM_ATTEMPTS):
            if await self._tell(*claim):
                return RequestKey("claimed")
            rows = await self._ask(*look)
            if rows:
                known, state, conversation_id, seq = rows[0]
                return RequestKey(state, conversation_id, seq) if known == digest else RequestKey("differs")
        return RequestKey("running")

    async def settle_request(self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int) -> None:
        ours = {"tenant": tenant, "key": key, "holder": holder}
        rows = await self._ask(*self._dialect.say(f"SELECT kept_seconds FROM request_keys WHERE {_RUNNING}", **ours))
        if not rows:
            return
        text = f"""
            UPDATE request_keys
            SET state = 'done', conversation_id = :conversation_id, seq = :seq,
                expires_at = {self.due.format(":expires_at")}
            WHERE {_RUNNING}"""
        answer = {"conversation_id": conversation_id, "seq": seq, "expires_at": self._due(rows[0][0])}
        await self._tell(*self._dialect.say(text, **ours, **answer))

    async def give_up_request(self, *, tenant: str, key: str, holder: str) -> None:
        text = f"DELETE FROM request_keys WHERE {_RUNNING}"
        await self._tell(*self._dialect.say(text, tenant=tenant, key=key, holder=holder))

    async def purge_requests(self) -> int:
        text = f"DELETE FROM request_keys WHERE expires_at <= {self.due.format(':now')} RETURNING 1"
        return len(await self._tell(*self._dialect.say(text, now=self._due())))

    async def add_key(self, key: ApiKey) -> None:
        marks = ", ".join(f":{name}" for name in KEY_COLUMNS)
        text = f"INSERT INTO api_keys ({', '.join(KEY_COLUMNS)}) VALUES ({marks})"
        await self._tell(*self._dialect.say(text, **key_values(key, self._dialect.moment)))

    async def key_of(self, digest: str) -> ApiKey | None:
        text = f"SELECT {', '.join(KEY_COLUMNS)} FROM api_keys WHERE digest = :digest"
        rows = await self._ask(*self._dialect.say(text, digest=digest))
        return key_of(rows[0]) if rows else None

    async def keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        select = f"SELECT {', '.join(KEY_COLUMNS)} FROM api_keys"
        order = "ORDER BY created_at, id"
        if tenant is None:
            rows = await self._ask(*self._dialect.say(f"{select} {order}"))
        else:
            rows = await self._ask(*self._dialect.say(f"{select} WHERE tenant = :tenant {order}", tenant=tenant))
        return [key_of(row) for row in rows]

    async def revoke_key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        values = {"id": key_id, "now": self._now()} | ({} if tenant is None else {"tenant": tenant})
        text = f"""
            UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now)
            WHERE id = :id{"" if tenant is None else " AND tenant = :tenant"}
            RETURNING {", ".join(KEY_COLUMNS)}"""
        rows = await self._tell(*self._dialect.say(text, **values))
        return key_of(rows[0]) if rows else None

    async def server_secret(self, name: str, *, proposed: str) -> str:
        look = self._dialect.say("SELECT value FROM server_secrets WHERE name = :name", name=name)
        rows = await self._ask(*look)
        if not rows:
            text = "INSERT INTO server_secrets (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
            await self._tell(*self._dialect.say(text, name=name, value=proposed))
            rows = await self._ask(*look)
        return str(rows[0][0])
