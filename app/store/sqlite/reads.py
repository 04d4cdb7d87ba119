"""What a look-up runs inside SQLite: each public function is one job on a connection."""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import orjson

from app.conversation.messages import Anchor, Chunk, ClientVersion, Conversation, LogMessage
from app.store.contract import MAX_ANCHORS, NEAR_LINKS, WINDOW_LINKS, Match
from app.store.lineage import Stretch, deepest_first
from app.store.sql.rows import ANCHOR_COLUMNS, MESSAGE_COLUMNS, chunk_of, conversation_of, log_message_of, version_of
from app.store.sql.statements import MatchSource, chunk_columns, matches, numbered
from app.store.sql.transactions import SQLITE

SQL: Final = SQLITE.sql

_LIST_SIZES: Final = (8, 32, WINDOW_LINKS, 512)
"""Lengths of VALUES lists; shorter ones are filled up with NULL, so that a handful of texts serves all."""
_MESSAGE: Final = len(MESSAGE_COLUMNS)
_NAMED: Final = """
    named (id, upto_seq) AS (
        SELECT id, head_seq FROM conversations WHERE root = :root AND id = :within AND tenant = :tenant
        UNION ALL
        SELECT json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]')
        FROM conversations k, json_each(k.lineage) e
        WHERE k.root = :root AND k.id = :within AND k.tenant = :tenant)"""
_READ_STRETCHES: Final = f"""
    SELECT {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM json_each(?2) s CROSS JOIN messages m
      ON m.root = ?1 AND m.conversation_id = json_extract(s.value, '$[0]')
     AND m.seq >= json_extract(s.value, '$[1]') AND m.seq < json_extract(s.value, '$[2]')
    ORDER BY m.seq"""
_ANCHORS: Final = f"""
    SELECT {", ".join(ANCHOR_COLUMNS)} FROM anchors WHERE digest = ? ORDER BY kept_at DESC, conversation_id LIMIT ?"""
_CHUNKS_ON_PATH: Final = """
    WITH p (id, upto_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?2))
    SELECT {columns} FROM chunks k
    WHERE k.root = ?1 AND k.tenant = ?3 {beginning} AND EXISTS (
        SELECT 1 FROM p CROSS JOIN messages m
        WHERE m.root = ?1 AND m.link = k.to_link AND m.seq = k.to_seq - 1
          AND m.conversation_id = p.id AND m.seq <= p.upto_seq)"""


def _values(size: int) -> str:
    """A relation `(depth, link)` of `size` parameters."""
    return "(SELECT column1 AS depth, column2 AS link FROM (VALUES {}))".format(
        ", ".join(f"({depth}, :link{depth})" for depth in range(size))
    )


@cache
def _matches(size: int, *, by_skeleton: bool, within: bool) -> str:
    joined = _values(size) + " w CROSS JOIN messages m ON {message} CROSS JOIN conversations c ON {conversation}"
    text = matches(MatchSource(joined, yes=" = 1"), by_skeleton=by_skeleton, within=within)
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
    if by_link and by_link[0].message.link in links[-WINDOW_LINKS:]:
        # A skeleton skips messages: what it reaches further back than this is shallower than the link.
        skeletons = skeletons[-WINDOW_LINKS:]
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
        return False
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
        wanted = deepest_first(links[max(0, end - window) : end])
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


def look_up(connection: sqlite3.Connection, conversation_id: str, root: str | None) -> Conversation | None:
    row = connection.execute(SQL.by_id_alone, (root, conversation_id)).fetchone()
    return None if row is None else conversation_of(row)


def read(connection: sqlite3.Connection, root: str, wanted: Sequence[Stretch]) -> list[LogMessage]:
    if len(wanted) == 1:
        (one,) = wanted
        rows = connection.execute(SQL.log_range, (root, one.conversation_id, one.from_seq, one.to_seq))
        return [log_message_of(row) for row in rows]
    stretch = orjson.dumps([(one.conversation_id, one.from_seq, one.to_seq) for one in wanted]).decode()
    return [log_message_of(row) for row in connection.execute(_READ_STRETCHES, (root, stretch))]


def versions(
    connection: sqlite3.Connection, root: str, path: Sequence[tuple[str, int]], until_seq: int
) -> list[ClientVersion]:
    return [
        version_of(row)
        for conversation_id, upto_seq in path
        for row in connection.execute(SQL.versions, (root, conversation_id, min(upto_seq, until_seq)))
    ]


def find_anchors(connection: sqlite3.Connection, digests: Sequence[bytes]) -> list[Anchor]:
    return [Anchor(*row) for digest in digests for row in connection.execute(_ANCHORS, (digest, MAX_ANCHORS))]


@cache
def _chunks_on_path(*, begins: bool, texts: bool) -> str:
    beginning = "AND k.from_link = ?4" if begins else ""
    return _CHUNKS_ON_PATH.format(columns=chunk_columns(texts=texts), beginning=beginning)


@cache
def _chunks_at(size: int, *, texts: bool) -> str:
    marks = ", ".join("?" * size)
    columns = chunk_columns(texts=texts)
    return f"SELECT {columns} FROM chunks k WHERE k.root = ? AND k.tenant = ? AND k.to_link IN ({marks})"


def chunks(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    path: Sequence[tuple[str, int]],
    links: Sequence[bytes],
    after: bytes | None,
    *,
    texts: bool,
) -> list[Chunk]:
    rows: list[Any] = []
    if path:
        on_path = _chunks_on_path(begins=after is not None, texts=texts)
        beginning = () if after is None else (after,)
        rows += connection.execute(on_path, (root, orjson.dumps(path).decode(), tenant, *beginning)).fetchall()
    for start in range(0, len(links), _LIST_SIZES[-1]):
        wanted = links[start : start + _LIST_SIZES[-1]]
        size = next(size for size in _LIST_SIZES if size >= len(wanted))
        padding = (None,) * (size - len(wanted))
        rows += connection.execute(_chunks_at(size, texts=texts), (root, tenant, *wanted, *padding)).fetchall()
    found = {row[0]: chunk_of(row) for row in rows}
    return sorted(found.values(), key=lambda chunk: (chunk.to_seq, chunk.created_at, chunk.id))


def model_facts(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    return {model: orjson.loads(facts) for model, facts in connection.execute(SQL.facts)}
