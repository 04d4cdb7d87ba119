"""What a write runs inside SQLite: each public function is one job inside the writer's transaction."""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from app.conversation.messages import Chunk, Conversation, LogMessage
from app.store import sqlite_search
from app.store.base import Append, HeadMoved, Lease, LeaseLost
from app.store.lineage import erasure
from app.store.rows import (
    CHUNK_COLUMNS,
    as_json,
    as_optional_json,
    as_text,
    chunk_values,
    conversation_of,
    lineage_json,
    lineage_of,
)
from app.store.sqlite_reads import SQL, get
from app.store.statements import CHUNK_ROW

_HELD: Final = "SELECT 1 FROM leases WHERE root = ? AND key = ? AND holder = ? AND token = ? AND expires_at > ?"
_CLAIM: Final = """
    INSERT INTO leases (root, key, holder, token, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (root, key) DO UPDATE
    SET holder = excluded.holder, token = max(leases.token + 1, excluded.token), expires_at = excluded.expires_at
    WHERE leases.expires_at <= ?6 OR leases.holder = excluded.holder
    RETURNING token"""
_RENEW: Final = "UPDATE leases SET expires_at = ? WHERE root = ? AND key = ? AND holder = ? AND token = ?"
_KEEP_CHUNK: Final = f"""
    INSERT INTO chunks ({", ".join(CHUNK_ROW)}) VALUES ({", ".join("?" * len(CHUNK_ROW))})
    ON CONFLICT (root, from_link, to_link, is_fold) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in CHUNK_COLUMNS)}
    WHERE chunks.kind = 'mechanical' AND excluded.kind = 'model'"""
_POINT: Final = """
    INSERT INTO external_ids (tenant, external_id, root, conversation_id) VALUES (?, ?, ?, ?)
    ON CONFLICT (tenant, external_id) DO UPDATE
    SET root = excluded.root, conversation_id = excluded.conversation_id"""


def append(connection: sqlite3.Connection, write: Append, now: datetime) -> None:
    if write.fence is not None:
        require(connection, write.fence, now)
    moment = as_text(now)
    if write.creates:
        _create(connection, write, moment)
    else:
        _advance(connection, write, moment)
    if write.messages:
        root, conversation_id = write.conversation.root, write.conversation.id
        rows = [_message_row(root, conversation_id, message, moment) for message in write.messages]
        connection.executemany(SQL.insert_message, rows)
    if write.releases and write.fence is not None:
        release(connection, write.fence)


def _create(connection: sqlite3.Connection, write: Append, moment: str) -> None:
    new = write.conversation
    if new.lineage and not _shares_what_exists(connection, new):
        raise HeadMoved
    values = (
        new.id,
        new.root,
        new.tenant,
        new.head_seq,
        new.head_link,
        new.head_skeleton,
        new.head_tokens_total,
        new.answered,
        new.encoding,
        lineage_json(new.lineage),
        new.external_id,
        new.mode,
        new.chunk_count,
        as_json(new.state),
        as_json(new.metadata),
        moment if new.created_at is None else as_text(new.created_at),
        moment,
    )
    try:
        connection.execute(SQL.insert_conversation, values)
        if new.external_id is not None and not new.lineage:
            connection.execute(SQL.insert_external_id, (new.tenant, new.external_id, new.root, new.id))
    except sqlite3.IntegrityError as error:
        raise HeadMoved from error


def _shares_what_exists(connection: sqlite3.Connection, branch: Conversation) -> bool:
    """Whether all that it shares is still where its lineage says; an ancestor's erasure moves it."""
    heads = []
    for ancestor, _ in branch.lineage:
        row = connection.execute(SQL.by_id, (branch.root, ancestor, branch.tenant)).fetchone()
        if row is None:
            return False
        heads.append(conversation_of(row).head_seq)
    return bool(heads[-1] >= branch.lineage[-1][1])


def _advance(connection: sqlite3.Connection, write: Append, moment: str) -> None:
    after = write.conversation
    values = (
        after.root,
        after.id,
        after.tenant,
        write.after_seq,
        after.head_seq,
        after.head_link,
        after.head_skeleton,
        after.head_tokens_total,
        after.answered,
        after.mode,
        after.chunk_count,
        as_json(after.state),
        moment,
    )
    if connection.execute(SQL.advance, values).rowcount != 1:
        raise HeadMoved


def _message_row(root: str, conversation_id: str, message: LogMessage, moment: str) -> tuple[Any, ...]:
    return (
        root,
        conversation_id,
        message.seq,
        message.message.raw.decode(),
        message.link,
        message.skeleton,
        message.in_skeleton,
        message.tokens,
        message.tokens_total,
        message.answered,
        message.incomplete,
        moment if message.created_at is None else as_text(message.created_at),
        as_optional_json(message.meta),
    )


def require(connection: sqlite3.Connection, fence: Lease, now: datetime) -> None:
    """
    Raises:
        LeaseLost: the lease has expired or been taken over.
    """
    held = connection.execute(_HELD, (fence.root, fence.key, fence.holder, fence.token, as_text(now)))
    if held.fetchone() is None:
        raise LeaseLost


def delete(connection: sqlite3.Connection, tenant: str, conversation_id: str, root: str | None) -> bool:
    doomed = get(connection, tenant, conversation_id, root)
    if doomed is None:
        return False
    here = (doomed.root, doomed.id)
    family = connection.execute(SQL.family, (doomed.root, f'%"{doomed.id}"%')).fetchall()
    plan = erasure(doomed.id, {member: lineage_of(lineage) for member, lineage in family})
    connection.execute(SQL.erase_messages, (*here, plan.kept_through))
    if plan.heir is not None:
        connection.execute(SQL.hand_over_messages, (*here, plan.heir))
    sqlite_search.erase(connection, *here, plan.kept_through, plan.heir)
    for member, lineage in plan.lineages.items():
        connection.execute(SQL.change_lineage, (doomed.root, member, lineage_json(lineage)))
    for statement in (
        SQL.erase_conversation,
        SQL.erase_external_ids,
        SQL.erase_leases,
        SQL.erase_chunks,
        SQL.hand_over_chunks,
    ):
        connection.execute(statement, here)
    return True


def point(connection: sqlite3.Connection, tenant: str, external_id: str, conversation: Conversation) -> None:
    row = connection.execute(SQL.by_external_id, (tenant, external_id)).fetchone()
    rename = "UPDATE conversations SET external_id = ? WHERE root = ? AND id = ?"
    if row is not None:
        previous = conversation_of(row)
        connection.execute(rename, (None, previous.root, previous.id))
    connection.execute(_POINT, (tenant, external_id, conversation.root, conversation.id))
    connection.execute(rename, (external_id, conversation.root, conversation.id))


def add_chunk(
    connection: sqlite3.Connection, tenant: str, root: str, chunk: Chunk, fence: Lease, now: datetime
) -> None:
    require(connection, fence, now)
    connection.execute(_KEEP_CHUNK, (root, tenant, bool(chunk.folds), *chunk_values(chunk, as_text(chunk.created_at))))


def claim(
    connection: sqlite3.Connection, root: str, key: str, holder: str, seconds: float, now: datetime
) -> Lease | None:
    token = int(now.timestamp() * 1_000_000)
    expires_at = as_text(now + timedelta(seconds=seconds))
    row = connection.execute(_CLAIM, (root, key, holder, token, expires_at, as_text(now))).fetchone()
    return None if row is None else Lease(root, key, holder, row[0])


def renew(connection: sqlite3.Connection, leases: Sequence[Lease], seconds: float, now: datetime) -> list[Lease]:
    expires_at = as_text(now + timedelta(seconds=seconds))
    return [
        lease
        for lease in leases
        if connection.execute(_RENEW, (expires_at, lease.root, lease.key, lease.holder, lease.token)).rowcount != 1
    ]


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(SQL.release, (lease.root, lease.key, lease.holder, lease.token))


def learn(connection: sqlite3.Connection, model: str, facts: Mapping[str, Any], now: datetime) -> None:
    row = connection.execute("SELECT facts FROM model_facts WHERE model = ?", (model,)).fetchone()
    known: dict[str, Any] = {} if row is None else orjson.loads(row[0])
    connection.execute(
        "INSERT OR REPLACE INTO model_facts (model, facts, updated_at) VALUES (?, ?, ?)",
        (model, as_json({**known, **facts}), as_text(now)),
    )
