"""Writes to SQLite. Each public function is one job inside the writer's transaction."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import astuple, replace

from app.conversation.conversation_types import AnswerAnchor, Conversation, IssuedAnswer
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.redaction_effects import adapt_append_to_redactions, drop_redacted_versions
from app.store.sql import conversation_transactions
from app.store.sql.dialects import SQLITE, Rows, Statement, TransactionSteps
from app.store.sql.fingerprints import build_fingerprint_rows
from app.store.sql.rows import (
    claims_external_id,
    client_version_values,
    conversation_values,
    decode_conversation,
    encode_json,
    encode_time,
    head_update_values,
    lease_values,
    message_values,
)
from app.store.sql.statements import FINGERPRINT_COLUMNS, SPEND_FINGERPRINT
from app.store.sqlite.reads import SQL
from app.store.sqlite.row_batches import build_values_clause, insert_rows
from app.store.sqlite.term_index import SqliteIndexCleanup

Result = TypeVar("Result")

SEARCH_INDEX_CLEANUP: Final = SqliteIndexCleanup()

_FENCE_QUERY: Final = "SELECT 1 FROM leases WHERE root = ? AND key = ? AND holder = ? AND token = ? AND expires_at > ?"
_CLAIM_LEASE: Final = """
    INSERT INTO leases (root, key, holder, token, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (root, key) DO UPDATE
    SET holder = excluded.holder, token = max(leases.token + 1, excluded.token), expires_at = excluded.expires_at
    WHERE leases.expires_at <= ?6 OR leases.holder = excluded.holder
    RETURNING token"""
_RENEW_LEASE: Final = "UPDATE leases SET expires_at = ? WHERE root = ? AND key = ? AND holder = ? AND token = ?"
_ASSIGN_EXTERNAL_ID: Final = """
    INSERT INTO external_ids (tenant, external_id, root, conversation_id) VALUES (?, ?, ?, ?)
    ON CONFLICT (tenant, external_id) DO UPDATE
    SET root = excluded.root, conversation_id = excluded.conversation_id"""


def write_log_append(connection: sqlite3.Connection, write: LogAppend, now: datetime) -> None:
    """As `ConversationStore.append`."""
    if write.fence is not None:
        require_lease(connection, write.fence, now)
    moment = encode_time(now)
    if write.creates_conversation:
        write = _insert_conversation(connection, write, moment)
    # The usual case is one statement. Versions must first be compared with the stored redactions.
    elif write.versions or not _try_update_head(connection, write, moment):
        write = _update_redacted_head(connection, write, moment)
    if write.messages:
        connection.executemany(SQL.insert_message, message_rows(write, moment))
    if write.versions:
        conversation_key = (write.conversation.root, write.conversation.id)
        connection.executemany(
            SQL.insert_version, [(*conversation_key, *client_version_values(one)) for one in write.versions]
        )
    write_answer_keys(connection, [write], moment)
    if write.releases_lease and write.fence is not None:
        release_lease(connection, write.fence)


def write_answer_keys(connection: sqlite3.Connection, writes: Sequence[LogAppend], stored_now: str) -> None:
    """Writes the fingerprints and anchors of appends."""
    if answers := [write.issued for write in writes if write.issued is not None]:
        issue_answers(connection, answers)
    if anchors := [(*astuple(anchor), stored_now) for write in writes for anchor in write.anchors]:
        connection.executemany(SQL.insert_anchor, anchors)


def issue_answers(connection: sqlite3.Connection, answers: Sequence[IssuedAnswer]) -> None:
    """As `ConversationStore.issue_answer`."""
    insert_rows(connection, _build_fingerprints_insert, build_fingerprint_rows(answers))


@cache
def _build_fingerprints_insert(size: int) -> str:
    """Builds the statement for that many rows of `FingerprintRow`. A row that is spent, or is the same owner's, is left
    out; any other that exists is spent."""
    values = build_values_clause(size, len(FINGERPRINT_COLUMNS) + 1)
    return f"""
        INSERT INTO fingerprints ({", ".join(FINGERPRINT_COLUMNS)})
        SELECT column1, column2, column3, column4 FROM ({values})
        WHERE NOT EXISTS (
            SELECT 1 FROM fingerprints f WHERE f.digest = column1 AND (f.conversation_id IS NULL OR EXISTS (
                SELECT 1 FROM json_each(column5) o
                WHERE json_extract(o.value, '$[0]') = f.conversation_id AND json_extract(o.value, '$[1]') > f.seq)))
        ON CONFLICT (digest) DO UPDATE SET {SPEND_FINGERPRINT}"""


def _insert_conversation(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> LogAppend:
    """Inserts the conversation. Returns the append without versions of redacted messages."""
    new = write.conversation
    # An ancestor was erased, or its messages have moved, since the branch was planned.
    if new.lineage and not _ancestors_hold_shared_messages(connection, new):
        raise WriteConflict
    try:
        connection.execute(SQL.insert_conversation, new_conversation_row(new, stored_now))
        if claims_external_id(new):
            connection.execute(SQL.insert_external_id, (new.tenant, new.external_id, new.root, new.id))
    except sqlite3.IntegrityError as error:
        raise WriteConflict from error
    return replace(write, versions=drop_redacted_versions(write, new)) if write.versions else write


def new_conversation_row(conversation: Conversation, stored_now: str) -> tuple[Any, ...]:
    return conversation_values(
        conversation,
        stored_now if conversation.created_at is None else encode_time(conversation.created_at),
        stored_now,
    )


def _ancestors_hold_shared_messages(connection: sqlite3.Connection, conversation: Conversation) -> bool:
    """Whether the ancestors still hold the shared messages. An ancestor's erasure moves them to another
    conversation.
    """
    heads = []
    for ancestor, _ in conversation.lineage:
        row = connection.execute(SQL.select_conversation, (conversation.root, ancestor, conversation.tenant)).fetchone()
        if row is None:
            return False
        heads.append(decode_conversation(row).head_seq)
    return bool(heads[-1] >= conversation.lineage[-1][1])


def _update_redacted_head(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> LogAppend:
    """Moves the head, whatever was redacted meanwhile. Returns the append as it is written."""
    after = write.conversation
    row = connection.execute(SQL.select_conversation, (after.root, after.id, after.tenant)).fetchone()
    if row is None:
        raise WriteConflict
    write = adapt_append_to_redactions(write, decode_conversation(row))
    if not _try_update_head(connection, write, stored_now):
        raise WriteConflict
    return write


def _try_update_head(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> bool:
    return connection.execute(SQL.update_head, head_update_values(write, stored_now)).rowcount == 1


def message_rows(write: LogAppend, stored_now: str) -> list[tuple[Any, ...]]:
    """Returns the values of `MESSAGE_INSERT_COLUMNS` for each message of an append."""
    key = (write.conversation.root, write.conversation.id)
    return [
        (*key, *message_values(entry, stored_now if entry.created_at is None else encode_time(entry.created_at)))
        for entry in write.messages
    ]


def build_fence_query(fence: Lease, now: datetime) -> Statement:
    """Builds the query that returns a row if the lease of a fence is held at `now`."""
    return _FENCE_QUERY, (*lease_values(fence), encode_time(now))


def require_lease(connection: sqlite3.Connection, fence: Lease, now: datetime) -> None:
    """Checks that the lease of a fence is still held.

    Raises:
        LeaseLost: the lease has expired, or another holder has it.
    """
    if connection.execute(*build_fence_query(fence, now)).fetchone() is None:
        raise LeaseLost


def run_transaction_steps(connection: sqlite3.Connection, steps: TransactionSteps[Result]) -> Result:
    """Runs the steps of a transaction, and returns their result."""
    rows: Rows | None = None
    while True:
        try:
            query = next(steps) if rows is None else steps.send(rows)
        except StopIteration as end:
            result: Result = end.value
            return result
        rows = connection.execute(*query).fetchall()


def erase_conversation(connection: sqlite3.Connection, tenant: str, conversation_id: str) -> bool:
    """Erases a conversation. Returns whether there was one."""
    row = connection.execute(*SQLITE.build_conversation_query(tenant, conversation_id)).fetchone()
    if row is None:
        return False
    return run_transaction_steps(
        connection,
        conversation_transactions.erase_conversation(SQLITE, SEARCH_INDEX_CLEANUP, decode_conversation(row)),
    )


def assign_external_id(
    connection: sqlite3.Connection, tenant: str, external_id: str, conversation: Conversation
) -> None:
    # The former conversation loses the id: two conversations with one external id would both be listed under it.
    row = connection.execute(SQL.select_by_external_id, (tenant, external_id)).fetchone()
    rename = "UPDATE conversations SET external_id = ? WHERE root = ? AND id = ?"
    if row is not None:
        previous = decode_conversation(row)
        connection.execute(rename, (None, previous.root, previous.id))
    connection.execute(_ASSIGN_EXTERNAL_ID, (tenant, external_id, conversation.root, conversation.id))
    connection.execute(rename, (external_id, conversation.root, conversation.id))


def add_anchors(connection: sqlite3.Connection, anchors: Sequence[AnswerAnchor], now: datetime) -> None:
    moment = encode_time(now)
    connection.executemany(SQL.insert_anchor, [(*astuple(anchor), moment) for anchor in anchors])


def claim_lease(
    connection: sqlite3.Connection, root: str, key: str, holder: str, seconds: float, now: datetime
) -> Lease | None:
    # Microseconds since 1970, and more than the stored token: tokens grow even though releasing deletes the row.
    token = int(now.timestamp() * 1_000_000)
    expires_at = encode_time(now + timedelta(seconds=seconds))
    row = connection.execute(_CLAIM_LEASE, (root, key, holder, token, expires_at, encode_time(now))).fetchone()
    return None if row is None else Lease(root, key, holder, row[0])


def renew_leases(connection: sqlite3.Connection, leases: Sequence[Lease], seconds: float, now: datetime) -> list[Lease]:
    expires_at = encode_time(now + timedelta(seconds=seconds))
    return [
        lease for lease in leases if connection.execute(_RENEW_LEASE, (expires_at, *lease_values(lease))).rowcount != 1
    ]


def release_lease(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(SQL.release_lease, lease_values(lease))


def merge_model_facts(connection: sqlite3.Connection, model: str, facts: Mapping[str, Any], now: datetime) -> None:
    row = connection.execute("SELECT facts FROM model_facts WHERE model = ?", (model,)).fetchone()
    known: dict[str, Any] = {} if row is None else orjson.loads(row[0])
    connection.execute(
        "INSERT OR REPLACE INTO model_facts (model, facts, updated_at) VALUES (?, ?, ?)",
        (model, encode_json({**known, **facts}), encode_time(now)),
    )
