"""Reads from SQLite, writes to it, and copies of its write-ahead log into the file. Each public function is one job: a
write runs inside the writer's transaction, the others on a connection.

A checkpoint of 4,000 pages takes 25 to 180 ms, fsync included. In a commit, it would delay all streams whose questions
wait to be stored. Therefore a thread of its own copies what was committed, while commits go on. They append to the log;
when it has `wal_autocheckpoint` pages, a commit copies the small rest, and the next commit begins the log again. If
nothing is committed during a checkpoint of the thread, no rest remains, and the log begins again earlier.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from time import sleep
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import astuple, replace

from app.conversation.conversation_types import AnswerAnchor, AnswerProof, Conversation, IssuedAnswer, Summary
from app.store.contract.conversations import (
    DEEPEST_LINKS,
    LAST_LINKS,
    MAX_ANCHORS,
    LinkMatch,
    LogAppend,
    WriteConflict,
)
from app.store.contract.leases import Lease, LeaseLost
from app.store.lineage import order_links_deepest_first
from app.store.redaction_effects import adapt_append_to_redactions, drop_redacted_versions
from app.store.sql.dialects import Rows, Statement, TransactionSteps
from app.store.sql.fingerprints import build_fingerprint_rows, decode_proof
from app.store.sql.rows import (
    ANCHOR_COLUMNS,
    CLIENT_VERSION_COLUMNS,
    CONVERSATION_COLUMNS,
    MESSAGE_COLUMNS,
    claims_external_id,
    client_version_values,
    conversation_values,
    decode_conversation,
    decode_link_match,
    decode_summary,
    encode_time,
    head_update_values,
    lease_values,
    message_values,
)
from app.store.sql.statements import (
    FINGERPRINT_COLUMNS,
    LEASE_PARAMETERS,
    RELEASE_LEASE,
    REPLACE_VERSION,
    SELECT_CONVERSATION,
    SPEND_FINGERPRINT,
    UPDATE_HEAD,
    UPDATE_HEAD_PARAMETERS,
    build_link_match_query,
    number_parameters,
    summary_select_columns,
)

Result = TypeVar("Result")


def _build_insert(table: str, *names: str) -> str:
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


_INSERT_CONVERSATION: Final = _build_insert("conversations", *CONVERSATION_COLUMNS)
_INSERT_EXTERNAL_ID: Final = _build_insert("external_ids", "tenant", "external_id", "root", "conversation_id")
_INSERT_MESSAGE: Final = _build_insert("messages", "root", "conversation_id", *MESSAGE_COLUMNS)
_INSERT_VERSION: Final = (
    _build_insert("client_versions", "root", "conversation_id", *CLIENT_VERSION_COLUMNS) + REPLACE_VERSION
)
_INSERT_ANCHOR: Final = f"{_build_insert('anchors', *ANCHOR_COLUMNS, 'kept_at')} ON CONFLICT DO NOTHING"
_UPDATE_HEAD: Final = number_parameters(UPDATE_HEAD, UPDATE_HEAD_PARAMETERS, "?")
_RELEASE_LEASE: Final = number_parameters(RELEASE_LEASE, LEASE_PARAMETERS, "?")
_SELECT_CONVERSATION: Final = number_parameters(SELECT_CONVERSATION, ("root", "id", "tenant"), "?")
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

CHECKPOINT_SECONDS: Final = 1.0
"""The time from the first commit after a checkpoint to the next checkpoint. It bounds the rest that a commit may copy.
At 0.25 s, repeated copies of the same pages take 10 % more CPU time of a busy gateway, and streams wait no shorter for
their first byte.
"""
TRUNCATE_ATTEMPTS: Final = 5
TRUNCATE_WAIT_MS: Final = 50
"""How long each attempt waits for readers, while writers wait; and the pause before the next attempt."""
_LIST_SIZES: Final = (8, 32, DEEPEST_LINKS, 512)
"""Lengths of VALUES lists. Shorter lists are padded with NULL, so that SQLite compiles only a few texts."""
_NAMED_LOG: Final = """
    named (id, upto_seq) AS (
        SELECT id, head_seq FROM conversations WHERE root = :root AND id = :within AND tenant = :tenant
        UNION ALL
        SELECT json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]')
        FROM conversations k, json_each(k.lineage) e
        WHERE k.root = :root AND k.id = :within AND k.tenant = :tenant)"""
_FIND_ANCHORS: Final = f"""
    SELECT {", ".join(ANCHOR_COLUMNS)} FROM anchors WHERE digest = ? ORDER BY kept_at DESC, conversation_id LIMIT ?"""
_FIND_PROOFS: Final = f"""
    SELECT f.digest, f.seq, {", ".join(f"c.{name}" for name in CONVERSATION_COLUMNS)}
    FROM fingerprints f LEFT JOIN conversations c ON c.root = f.root AND c.id = f.conversation_id AND c.tenant = ?
    WHERE f.digest IN ({{marks}})"""
_PATH_SUMMARIES: Final = """
    WITH p (id, upto_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?2))
    SELECT {columns} FROM chunks k
    WHERE k.root = ?1 AND k.tenant = ?3 {beginning} AND EXISTS (
        SELECT 1 FROM p CROSS JOIN messages m
        WHERE m.root = ?1 AND m.link = k.to_link AND m.seq = k.to_seq - 1
          AND m.conversation_id = p.id AND m.seq <= p.upto_seq)"""


@cache
def _build_link_match_query(size: int, *, with_named: bool, with_unanswered: bool) -> str:
    values = ", ".join(f"({depth}, :link{depth})" for depth in range(size))
    text = build_link_match_query(
        f"(SELECT column1 AS depth, column2 AS link FROM (VALUES {values})) w"
        " CROSS JOIN messages m ON {message} CROSS JOIN conversations c ON {conversation}",
        with_named=with_named,
        with_unanswered=with_unanswered,
        true_comparison=" = 1",
    )
    links = tuple(f"link{depth}" for depth in range(size))
    if not with_named:
        return number_parameters(text, ("root", "tenant", *links), "?")
    return number_parameters(f"WITH {_NAMED_LOG} {text}", ("root", "tenant", "within", *links), "?")


def find_link_matches(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    links: Sequence[bytes],
    named_conversation_id: str | None,
    with_unanswered: bool,
) -> list[LinkMatch]:
    """As `ConversationStore.find_link_matches`."""
    # The usual turn adds to the end of a log that is stored: one query with one link finds it.
    near: list[LinkMatch] = []
    last_link_query = _build_link_match_query(1, with_named=False, with_unanswered=with_unanswered)
    for link in reversed(links[-LAST_LINKS:]):
        if near := _fetch_matches(connection, last_link_query, (root, tenant, link)):
            break
    if near and (
        named_conversation_id is None or _matches_named_log(connection, tenant, root, near, named_conversation_id)
    ):
        return near
    # A new conversation, the other frequent case: without this check thousands of links would be looked up in vain.
    if named_conversation_id is None and not _has_conversation_with_root(connection, root):
        return []
    return _find_deepest_matches(connection, tenant, root, links, named_conversation_id, with_unanswered)


def _fetch_matches(connection: sqlite3.Connection, sql: str, arguments: Sequence[Any]) -> list[LinkMatch]:
    return [decode_link_match(row[1:]) for row in connection.execute(sql, arguments).fetchall()]


def _matches_named_log(
    connection: sqlite3.Connection, tenant: str, root: str, found: list[LinkMatch], named_conversation_id: str
) -> bool:
    if any(match.conversation.id == named_conversation_id for match in found):
        return True
    named = _find_conversation(connection, root, named_conversation_id, tenant)
    path = {} if named is None else dict(named.lineage)
    return any(match.message.seq <= path.get(match.conversation.id, -1) for match in found)


def _find_conversation(
    connection: sqlite3.Connection, root: str, conversation_id: str, tenant: str
) -> Conversation | None:
    row = connection.execute(_SELECT_CONVERSATION, (root, conversation_id, tenant)).fetchone()
    return None if row is None else decode_conversation(row)


def _has_conversation_with_root(connection: sqlite3.Connection, root: str) -> bool:
    """Whether any conversation has this root, that is: begins with the same message."""
    return connection.execute("SELECT 1 FROM conversations WHERE root = ? LIMIT 1", (root,)).fetchone() is not None


def _find_deepest_matches(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    links: Sequence[bytes],
    named_conversation_id: str | None,
    with_unanswered: bool,
) -> list[LinkMatch]:
    """Returns the matches in the deepest window of links that has any."""
    end, window = len(links), DEEPEST_LINKS
    leading = (root, tenant) if named_conversation_id is None else (root, tenant, named_conversation_id)
    # The first window is small, since a match is nearly always deep; the following ones are as large as a list can be.
    while end > 0:
        wanted = _pad_list(order_links_deepest_first(links[max(0, end - window) : end]))
        sql = _build_link_match_query(
            len(wanted), with_named=named_conversation_id is not None, with_unanswered=with_unanswered
        )
        if found := _fetch_matches(connection, sql, (*leading, *wanted)):
            return found
        end, window = end - window, _LIST_SIZES[-1]
    return []


def find_anchors(connection: sqlite3.Connection, digests: Sequence[bytes]) -> list[AnswerAnchor]:
    return [
        AnswerAnchor(*row) for digest in digests for row in connection.execute(_FIND_ANCHORS, (digest, MAX_ANCHORS))
    ]


def find_proofs(connection: sqlite3.Connection, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
    """As `ConversationStore.find_proofs`."""
    found: list[AnswerProof] = []
    for wanted in _split_into_lists(fingerprints):
        sql = _FIND_PROOFS.format(marks=", ".join("?" * len(wanted)))
        found += map(decode_proof, connection.execute(sql, (tenant, *wanted)).fetchall())
    return found


def _split_into_lists(values: Sequence[bytes]) -> Iterator[list[bytes | None]]:
    for start in range(0, len(values), _LIST_SIZES[-1]):
        yield _pad_list(values[start : start + _LIST_SIZES[-1]])


def _pad_list(values: Sequence[bytes]) -> list[bytes | None]:
    size = next(size for size in _LIST_SIZES if size >= len(values))
    return [*values, *[None] * (size - len(values))]


@cache
def _build_path_summaries_query(*, begins: bool, with_texts: bool) -> str:
    beginning = "AND k.from_link = ?4" if begins else ""
    return _PATH_SUMMARIES.format(columns=summary_select_columns(with_texts=with_texts), beginning=beginning)


@cache
def _build_link_summaries_query(size: int, *, with_texts: bool) -> str:
    marks = ", ".join("?" * size)
    columns = summary_select_columns(with_texts=with_texts)
    return f"SELECT {columns} FROM chunks k WHERE k.root = ? AND k.tenant = ? AND k.to_link IN ({marks})"


def find_summaries(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    path: Sequence[tuple[str, int]],
    links: Sequence[bytes],
    from_link: bytes | None,
    *,
    with_texts: bool,
) -> list[Summary]:
    rows: list[Any] = []
    if path:
        on_path = _build_path_summaries_query(begins=from_link is not None, with_texts=with_texts)
        beginning = () if from_link is None else (from_link,)
        rows += connection.execute(on_path, (root, orjson.dumps(path).decode(), tenant, *beginning)).fetchall()
    for wanted in _split_into_lists(links):
        at_links = _build_link_summaries_query(len(wanted), with_texts=with_texts)
        rows += connection.execute(at_links, (root, tenant, *wanted)).fetchall()
    # Both queries can return the same summary.
    found = {row[0]: decode_summary(row) for row in rows}
    return sorted(found.values(), key=lambda summary: (summary.to_seq, summary.created_at, summary.id))


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
        connection.executemany(_INSERT_MESSAGE, rows)
    if write.versions:
        connection.executemany(
            _INSERT_VERSION, [(*conversation_key, *client_version_values(one)) for one in write.versions]
        )
    if write.issued is not None:
        issue_answer(connection, write.issued)
    if write.anchors:
        add_anchors(connection, write.anchors, now)
    if write.releases_lease and write.fence is not None:
        connection.execute(_RELEASE_LEASE, lease_values(write.fence))


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
        connection.execute(_INSERT_CONVERSATION, conversation_values(new, created_at, stored_now))
        if claims_external_id(new):
            connection.execute(_INSERT_EXTERNAL_ID, (new.tenant, new.external_id, new.root, new.id))
    except sqlite3.IntegrityError as error:
        raise WriteConflict from error
    return replace(write, versions=drop_redacted_versions(write, new)) if write.versions else write


def _ancestors_hold_shared_messages(connection: sqlite3.Connection, conversation: Conversation) -> bool:
    """Whether the ancestors still hold the shared messages. An ancestor's erasure moves them to another
    conversation.
    """
    head_seq = -1
    for ancestor_id, _ in conversation.lineage:
        ancestor = _find_conversation(connection, conversation.root, ancestor_id, conversation.tenant)
        if ancestor is None:
            return False
        head_seq = ancestor.head_seq
    return head_seq >= conversation.lineage[-1][1]


def _update_redacted_head(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> LogAppend:
    """Moves the head, whatever was redacted meanwhile. Returns the append as it is written."""
    after = write.conversation
    stored = _find_conversation(connection, after.root, after.id, after.tenant)
    if stored is None:
        raise WriteConflict
    write = adapt_append_to_redactions(write, stored)
    if not _try_update_head(connection, write, stored_now):
        raise WriteConflict
    return write


def _try_update_head(connection: sqlite3.Connection, write: LogAppend, stored_now: str) -> bool:
    return connection.execute(_UPDATE_HEAD, head_update_values(write, stored_now)).rowcount == 1


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
    connection.executemany(_INSERT_ANCHOR, [(*astuple(anchor), moment) for anchor in anchors])


def copy_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Copies as much as readers allow, and does not wait for readers or writers."""
    # The next checkpoint tries again, in the end that of a commit, which raises the error.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def truncate_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Copies the write-ahead log into the file and empties it. If readers prevent this in all attempts, the next call
    or closing the file does it.
    """
    connection.execute(f"PRAGMA busy_timeout = {TRUNCATE_WAIT_MS}")
    for _ in range(TRUNCATE_ATTEMPTS):
        # Busy or locked: the loop tries again.
        with contextlib.suppress(sqlite3.OperationalError):
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not is_busy:
                return
        # A checkpoint of another process: SQLite does not wait for its end.
        sleep(TRUNCATE_WAIT_MS / 1000)
