"""What runs inside SQLite: each function is one job on a connection, and one step of a turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import orjson

from app.conversation.messages import Chunk, Conversation, LogMessage
from app.store.base import Append, HeadMoved, Lease, LeaseLost, Match
from app.store.lineage import Stretch, erasure
from app.store.rows import (
    CHUNK_COLUMNS,
    MESSAGE_COLUMNS,
    as_json,
    as_optional_json,
    as_text,
    chunk_of,
    chunk_values,
    conversation_of,
    lineage_json,
    lineage_of,
    log_message_of,
)
from app.store.statements import (
    CHUNK_ROW,
    MAX_MATCHES,
    NEAR_LINKS,
    WINDOW_LINKS,
    matches,
    numbered,
    sqlite_statements,
)

SQL: Final = sqlite_statements()

_LIST_SIZES: Final = (8, 32, WINDOW_LINKS, 512)
"""Lengths of VALUES lists; shorter ones are filled up with NULL, so that a handful of texts serves all."""
_HELD: Final = "SELECT 1 FROM leases WHERE root = ? AND key = ? AND holder = ? AND token = ? AND expires_at > ?"
_MESSAGE: Final = len(MESSAGE_COLUMNS)
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
_NAMED: Final = """
    named (id, upto_seq) AS (
        SELECT id, head_seq FROM conversations WHERE root = :root AND id = :within AND tenant = :tenant
        UNION ALL
        SELECT json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]')
        FROM conversations, json_each(lineage) e WHERE root = :root AND id = :within AND tenant = :tenant)"""


def _values(size: int) -> str:
    """A relation `(depth, link)` of `size` parameters."""
    return "(SELECT column1 AS depth, column2 AS link FROM (VALUES {}))".format(
        ", ".join(f"({depth}, :link{depth})" for depth in range(size))
    )


@cache
def _matches(size: int, *, by_skeleton: bool, within: bool) -> str:
    text = matches(wanted=_values(size), join="CROSS JOIN", yes=" = 1", by_skeleton=by_skeleton, within=within)
    names = ["root", "tenant", *(f"link{depth}" for depth in range(size))]
    if not within:
        return numbered(text, names, "?")
    return numbered(f"WITH {_NAMED} {text}", ["root", "tenant", "within", *names[2:]], "?")


_NEAR: Final = _matches(1, by_skeleton=False, within=False)


def find(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    links: Sequence[bytes],
    skeletons: Sequence[bytes],
    within: str | None,
) -> list[Match]:
    near = _find_near(connection, tenant, root, links)
    if near and (within is None or _is_within(connection, tenant, root, near, within)):
        return near
    if within is None and not _knows(connection, root):
        return []
    by_link = _find_deepest(connection, tenant, root, links, within, by_skeleton=False)
    return by_link + _find_deepest(connection, tenant, root, skeletons, within, by_skeleton=True)


def _find_near(connection: sqlite3.Connection, tenant: str, root: str, links: Sequence[bytes]) -> list[Match]:
    """Where the last message, or else the one before it, is kept."""
    for link in reversed(links[-NEAR_LINKS:]):
        rows = connection.execute(_NEAR, (root, tenant, link)).fetchall()
        if rows:
            return [_match_of(row, by_skeleton=False) for row in rows]
    return []


def _is_within(connection: sqlite3.Connection, tenant: str, root: str, found: list[Match], within: str) -> bool:
    if any(match.conversation.id == within for match in found):
        return True
    row = connection.execute(SQL.by_id, (root, within, tenant)).fetchone()
    if row is None:
        return True
    path = dict(conversation_of(row).lineage)
    return any(match.message.seq <= path.get(match.conversation.id, -1) for match in found)


def _knows(connection: sqlite3.Connection, root: str) -> bool:
    """Whether anything at all begins with this message; spares looking for each of thousands of links."""
    return connection.execute("SELECT 1 FROM conversations WHERE root = ? LIMIT 1", (root,)).fetchone() is not None


def _find_deepest(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    links: Sequence[bytes],
    within: str | None,
    *,
    by_skeleton: bool,
) -> list[Match]:
    """Matches in the deepest window of links that holds any."""
    end, window = len(links), WINDOW_LINKS
    leading = (root, tenant) if within is None else (root, tenant, within)
    while end > 0:
        wanted = links[max(0, end - window) : end][::-1]
        size = next(size for size in _LIST_SIZES if size >= len(wanted))
        sql = _matches(size, by_skeleton=by_skeleton, within=within is not None)
        padding = (None,) * (size - len(wanted))
        rows = connection.execute(sql, (*leading, *wanted, *padding)).fetchall()
        if rows:
            return [_match_of(row, by_skeleton=by_skeleton) for row in rows]
        end, window = end - window, _LIST_SIZES[-1]
    return []


def _match_of(row: Sequence[Any], *, by_skeleton: bool) -> Match:
    return Match(conversation_of(row[1 + _MESSAGE :]), log_message_of(row[1 : 1 + _MESSAGE]), by_skeleton)


def get(connection: sqlite3.Connection, tenant: str, conversation_id: str, root: str | None) -> Conversation | None:
    """By an id of ours if it has a root, else by the client's own."""
    if root is not None:
        row = connection.execute(SQL.by_id, (root, conversation_id, tenant)).fetchone()
    else:
        row = connection.execute(SQL.by_external_id, (tenant, conversation_id)).fetchone()
    return None if row is None else conversation_of(row)


def point(connection: sqlite3.Connection, tenant: str, external_id: str, conversation: Conversation) -> None:
    row = connection.execute(SQL.by_external_id, (tenant, external_id)).fetchone()
    rename = "UPDATE conversations SET external_id = ? WHERE root = ? AND id = ?"
    if row is not None:
        previous = conversation_of(row)
        connection.execute(rename, (None, previous.root, previous.id))
    connection.execute(_POINT, (tenant, external_id, conversation.root, conversation.id))
    connection.execute(rename, (external_id, conversation.root, conversation.id))


def read(connection: sqlite3.Connection, root: str, wanted: Sequence[Stretch]) -> list[LogMessage]:
    if len(wanted) == 1:
        (one,) = wanted
        rows = connection.execute(SQL.log_range, (root, one.conversation_id, one.from_seq, one.to_seq))
        return [log_message_of(row) for row in rows]
    stretch = orjson.dumps([(one.conversation_id, one.from_seq, one.to_seq) for one in wanted]).decode()
    return [log_message_of(row) for row in connection.execute(_READ_STRETCHES, (root, stretch))]


_READ_STRETCHES: Final = f"""
    SELECT {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM json_each(?2) s CROSS JOIN messages m
      ON m.root = ?1 AND m.conversation_id = json_extract(s.value, '$[0]')
     AND m.seq >= json_extract(s.value, '$[1]') AND m.seq < json_extract(s.value, '$[2]')
    ORDER BY m.seq"""


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
    """Whether the conversation that it branches from is still there, as far as it shares it."""
    parent, upto_seq = branch.lineage[-1]
    row = connection.execute(SQL.by_id, (branch.root, parent, branch.tenant)).fetchone()
    return row is not None and conversation_of(row).head_seq >= upto_seq


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


_CHUNK_SELECT: Final = ", ".join(f"k.{name}" for name in CHUNK_COLUMNS)
_CHUNKS_ON_PATH: Final = f"""
    SELECT {_CHUNK_SELECT} FROM chunks k
    WHERE k.root = ?1 AND EXISTS (
        SELECT 1 FROM json_each(?2) p CROSS JOIN messages m
        WHERE m.root = ?1 AND m.link = k.to_link AND m.answered IN (0, 1)
          AND m.conversation_id = json_extract(p.value, '$[0]') AND m.seq <= json_extract(p.value, '$[1]'))"""


@cache
def _chunks_at(size: int) -> str:
    marks = ", ".join("?" * size)
    return f"SELECT {_CHUNK_SELECT} FROM chunks k WHERE k.root = ? AND k.to_link IN ({marks})"


def chunks(
    connection: sqlite3.Connection, root: str, path: Sequence[tuple[str, int]], links: Sequence[bytes]
) -> list[Chunk]:
    rows: list[Any] = []
    if path:
        rows += connection.execute(_CHUNKS_ON_PATH, (root, orjson.dumps(path).decode())).fetchall()
    for start in range(0, len(links), _LIST_SIZES[-1]):
        wanted = links[start : start + _LIST_SIZES[-1]]
        size = next(size for size in _LIST_SIZES if size >= len(wanted))
        padding = (None,) * (size - len(wanted))
        rows += connection.execute(_chunks_at(size), (root, *wanted, *padding)).fetchall()
    found = {row[0]: chunk_of(row) for row in rows}
    return sorted(found.values(), key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))


def add_chunk(
    connection: sqlite3.Connection, tenant: str, root: str, chunk: Chunk, fence: Lease, now: datetime
) -> None:
    require(connection, fence, now)
    connection.execute(
        _KEEP_CHUNK, (root, tenant, bool(chunk.folds), *chunk_values(chunk, as_text(chunk.created_at)))
    )


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


def model_facts(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    return {model: orjson.loads(facts) for model, facts in connection.execute(SQL.facts)}


def learn(connection: sqlite3.Connection, model: str, facts: Mapping[str, Any], now: datetime) -> None:
    row = connection.execute("SELECT facts FROM model_facts WHERE model = ?", (model,)).fetchone()
    known: dict[str, Any] = {} if row is None else orjson.loads(row[0])
    connection.execute(
        "INSERT OR REPLACE INTO model_facts (model, facts, updated_at) VALUES (?, ?, ?)",
        (model, as_json({**known, **facts}), as_text(now)),
    )
