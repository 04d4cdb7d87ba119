"""Writes to SQLite. Each public function is one job inside the writer's transaction."""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeVar

from msgspec.structs import astuple, replace

from app.conversation.conversation_types import AnswerAnchor, Conversation, IssuedAnswer
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.redaction_effects import adapt_append_to_redactions, drop_redacted_versions
from app.store.sql.dialects import Rows, Statement, TransactionSteps
from app.store.sql.fingerprints import build_fingerprint_rows
from app.store.sql.rows import (
    claims_external_id,
    client_version_values,
    conversation_values,
    decode_conversation,
    encode_time,
    head_update_values,
    lease_values,
    message_values,
)
from app.store.sql.statements import FINGERPRINT_COLUMNS, SPEND_FINGERPRINT
from app.store.sqlite.reads import SQL

Result = TypeVar("Result")

_FENCE_QUERY: Final = "SELECT 1 FROM leases WHERE root = ? AND key = ? AND holder = ? AND token = ? AND expires_at > ?"
_ISSUE_FINGERPRINT: Final = f"""
    INSERT INTO fingerprints ({", ".join(FINGERPRINT_COLUMNS)})
    SELECT ?1, ?2, ?3, ?4
    WHERE NOT EXISTS (
        SELECT 1 FROM fingerprints f WHERE f.digest = ?1 AND (f.conversation_id IS NULL OR EXISTS (
            SELECT 1 FROM json_each(?5) o
            WHERE json_extract(o.value, '$[0]') = f.conversation_id AND json_extract(o.value, '$[1]') > f.seq)))
    ON CONFLICT (digest) DO UPDATE SET {SPEND_FINGERPRINT}"""
"""Takes a `FingerprintRow`. One that is spent, or is the same owner's, is left out; any other that exists is spent."""


def write_log_append(connection: sqlite3.Connection, write: LogAppend, now: datetime) -> None:
    """As `ConversationStore.append`."""
    if write.fence is not None:
        _require_lease(connection, write.fence, now)
    moment = encode_time(now)
    if write.creates_conversation:
        write = _insert_conversation(connection, write, moment)
    # The usual case is one statement. Versions must first be compared with the stored redactions.
    elif write.versions or not _try_update_head(connection, write, moment):
        write = _update_redacted_head(connection, write, moment)
    conversation_key = (write.conversation.root, write.conversation.id)
    if write.messages:
        rows = [
            (*conversation_key, *message_values(one, moment if one.created_at is None else encode_time(one.created_at)))
            for one in write.messages
        ]
        connection.executemany(SQL.insert_message, rows)
    if write.versions:
        connection.executemany(
            SQL.insert_version, [(*conversation_key, *client_version_values(one)) for one in write.versions]
        )
    if write.issued is not None:
        issue_answer(connection, write.issued)
    if write.anchors:
        add_anchors(connection, write.anchors, now)
    if write.releases_lease and write.fence is not None:
        connection.execute(SQL.release_lease, lease_values(write.fence))


def issue_answer(connection: sqlite3.Connection, issued: IssuedAnswer) -> None:
    """As `ConversationStore.issue_answer`."""
    connection.executemany(_ISSUE_FINGERPRINT, build_fingerprint_rows([issued]))


def _insert_conversation(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> LogAppend:
    """Inserts the conversation. Returns the append without versions of redacted messages."""
    new = write.conversation
    # An ancestor was erased, or its messages have moved, since the branch was planned.
    if new.lineage and not _ancestors_hold_shared_messages(connection, new):
        raise WriteConflict
    try:
        created_at = stored_now if new.created_at is None else encode_time(new.created_at)
        connection.execute(SQL.insert_conversation, conversation_values(new, created_at, stored_now))
        if claims_external_id(new):
            connection.execute(SQL.insert_external_id, (new.tenant, new.external_id, new.root, new.id))
    except sqlite3.IntegrityError as error:
        raise WriteConflict from error
    return replace(write, versions=drop_redacted_versions(write, new)) if write.versions else write


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


def build_fence_query(fence: Lease, now: datetime) -> Statement:
    """Builds the query that returns a row if the lease of a fence is held at `now`."""
    return _FENCE_QUERY, (*lease_values(fence), encode_time(now))


def _require_lease(connection: sqlite3.Connection, fence: Lease, now: datetime) -> None:
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


def add_anchors(connection: sqlite3.Connection, anchors: Sequence[AnswerAnchor], now: datetime) -> None:
    moment = encode_time(now)
    connection.executemany(SQL.insert_anchor, [(*astuple(anchor), moment) for anchor in anchors])
