"""What a write runs inside SQLite: each public function is one job inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import replace

from app.conversation.messages import Anchor, Chunk, Conversation, LogMessage
from app.store.contract import Append, HeadMoved, Lease, LeaseLost
from app.store.shared_redaction import beginning_at, kept_versions, total_before
from app.store.sql import chunk_transactions, erasure_transactions
from app.store.sql.rows import (
    advance_values,
    anchor_values,
    as_json,
    as_text,
    conversation_of,
    conversation_values,
    message_values,
    names_itself,
    version_values,
)
from app.store.sql.transactions import SQLITE, Rows, Script
from app.store.sqlite.erased_remains import PIECE_CHARS
from app.store.sqlite.reads import SQL, get
from app.store.sqlite.search_index import SqliteWords

Result = TypeVar("Result")

WORDS: Final = SqliteWords()

_HELD: Final = "SELECT 1 FROM leases WHERE root = ? AND key = ? AND holder = ? AND token = ? AND expires_at > ?"
_CLAIM: Final = """
    INSERT INTO leases (root, key, holder, token, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (root, key) DO UPDATE
    SET holder = excluded.holder, token = max(leases.token + 1, excluded.token), expires_at = excluded.expires_at
    WHERE leases.expires_at <= ?6 OR leases.holder = excluded.holder
    RETURNING token"""
_RENEW: Final = "UPDATE leases SET expires_at = ? WHERE root = ? AND key = ? AND holder = ? AND token = ?"
_BEGINNINGS: Final = """
    SELECT substr(body, 1, ?1) FROM messages WHERE root = ?2 AND conversation_id = ?3
    UNION ALL
    SELECT substr(bodies, 1, ?1) FROM client_versions WHERE root = ?2 AND conversation_id = ?3 AND bodies != '[]'"""
_POINT: Final = """
    INSERT INTO external_ids (tenant, external_id, root, conversation_id) VALUES (?, ?, ?, ?)
    ON CONFLICT (tenant, external_id) DO UPDATE
    SET root = excluded.root, conversation_id = excluded.conversation_id"""


def append(connection: sqlite3.Connection, write: Append, now: datetime) -> None:
    if write.fence is not None:
        require(connection, write.fence, now)
    moment = as_text(now)
    write = _create(connection, write, moment) if write.creates else _advance(connection, write, moment)
    if write.messages:
        root, conversation_id = write.conversation.root, write.conversation.id
        rows = [message_row(root, conversation_id, message, moment) for message in write.messages]
        connection.executemany(SQL.insert_message, rows)
    insert_versions(connection, write)
    if write.releases and write.fence is not None:
        release(connection, write.fence)


def insert_versions(connection: sqlite3.Connection, write: Append) -> None:
    if write.versions:
        here = (write.conversation.root, write.conversation.id)
        connection.executemany(SQL.insert_version, [(*here, *version_values(one)) for one in write.versions])


def _create(connection: sqlite3.Connection, write: Append, moment: str) -> Append:
    """Insert the conversation; the append as it is done."""
    new = write.conversation
    if new.lineage and not _shares_what_exists(connection, new):
        raise HeadMoved
    try:
        connection.execute(SQL.insert_conversation, created_row(new, moment))
        if names_itself(new):
            connection.execute(SQL.insert_external_id, (new.tenant, new.external_id, new.root, new.id))
    except sqlite3.IntegrityError as error:
        raise HeadMoved from error
    return replace(write, versions=kept_versions(write, new)) if write.versions else write


def created_row(new: Conversation, moment: str) -> tuple[Any, ...]:
    return conversation_values(new, moment if new.created_at is None else as_text(new.created_at), moment)


def _shares_what_exists(connection: sqlite3.Connection, branch: Conversation) -> bool:
    """Whether all that it shares is still where its lineage says; an ancestor's erasure moves it."""
    heads = []
    for ancestor, _ in branch.lineage:
        row = connection.execute(SQL.by_id, (branch.root, ancestor, branch.tenant)).fetchone()
        if row is None:
            return False
        heads.append(conversation_of(row).head_seq)
    return bool(heads[-1] >= branch.lineage[-1][1])


def _advance(connection: sqlite3.Connection, write: Append, moment: str) -> Append:
    """Move the head; the append as it is done."""
    if not write.versions and _moves(connection, write, moment):
        return write
    after = write.conversation
    row = connection.execute(SQL.by_id, (after.root, after.id, after.tenant)).fetchone()
    if row is None:
        raise HeadMoved
    write = beginning_at(write, conversation_of(row))
    if not _moves(connection, write, moment):
        raise HeadMoved
    return write


def _moves(connection: sqlite3.Connection, write: Append, moment: str) -> bool:
    return connection.execute(SQL.advance, advanced_row(write, moment)).rowcount == 1


def advanced_row(write: Append, moment: str) -> tuple[Any, ...]:
    return advance_values(write.conversation, write.after_seq, total_before(write), moment)


def message_row(root: str, conversation_id: str, entry: LogMessage, moment: str) -> tuple[Any, ...]:
    created_at = moment if entry.created_at is None else as_text(entry.created_at)
    return (root, conversation_id, *message_values(entry, created_at))


def require(connection: sqlite3.Connection, fence: Lease, now: datetime) -> None:
    """
    Raises:
        LeaseLost: the lease has expired or been taken over.
    """
    held = connection.execute(_HELD, (fence.root, fence.key, fence.holder, fence.token, as_text(now)))
    if held.fetchone() is None:
        raise LeaseLost


def run(connection: sqlite3.Connection, script: Script[Result]) -> Result:
    """What a script comes to."""
    rows: Rows | None = None
    while True:
        try:
            query = next(script) if rows is None else script.send(rows)
        except StopIteration as end:
            result: Result = end.value
            return result
        rows = connection.execute(*query).fetchall()


def delete(connection: sqlite3.Connection, tenant: str, conversation_id: str, root: str | None) -> list[str] | None:
    """Erase a conversation; how its messages began, None if there is none."""
    doomed = get(connection, tenant, conversation_id, root)
    if doomed is None:
        return None
    texts = connection.execute(_BEGINNINGS, (PIECE_CHARS, doomed.root, doomed.id)).fetchall()
    run(connection, erasure_transactions.delete(SQLITE, WORDS, doomed))
    return [text for (text,) in texts]


def point(connection: sqlite3.Connection, tenant: str, external_id: str, conversation: Conversation) -> None:
    row = connection.execute(SQL.by_external_id, (tenant, external_id)).fetchone()
    rename = "UPDATE conversations SET external_id = ? WHERE root = ? AND id = ?"
    if row is not None:
        previous = conversation_of(row)
        connection.execute(rename, (None, previous.root, previous.id))
    connection.execute(_POINT, (tenant, external_id, conversation.root, conversation.id))
    connection.execute(rename, (external_id, conversation.root, conversation.id))


def keep_anchors(connection: sqlite3.Connection, anchors: Sequence[Anchor], now: datetime) -> None:
    moment = as_text(now)
    connection.executemany(SQL.insert_anchor, [(*anchor_values(anchor), moment) for anchor in anchors])


def add_chunk(
    connection: sqlite3.Connection, tenant: str, root: str, chunk: Chunk, fence: Lease, now: datetime
) -> None:
    require(connection, fence, now)
    run(connection, chunk_transactions.add(SQLITE, tenant, root, chunk))


def describe(
    connection: sqlite3.Connection, tenant: str, conversation_id: str, root: str | None, metadata: Mapping[str, str]
) -> Conversation | None:
    found = get(connection, tenant, conversation_id, root)
    if found is None:
        return None
    values = (as_json(metadata), found.root, found.id)
    connection.execute("UPDATE conversations SET metadata = ? WHERE root = ? AND id = ?", values)
    return get(connection, tenant, conversation_id, root)


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
