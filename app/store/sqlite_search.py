"""The index of words in SQLite: ordinary rows, clustered by conversation and term.

Not FTS5: our terms need no tokenizer and our ranking none of its, its index could be scoped neither to one conversation
nor (before SQLite 3.43, which many systems lack) be cleared of erased messages without their text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from app.conversation.messages import LogMessage
from app.store.base import Found
from app.store.lineage import Stretch
from app.store.rows import MESSAGE_COLUMNS, log_message_of
from app.store.search import RANKED_HITS, scope_of, score, weight

_IS_KEPT: Final = "SELECT 1 FROM messages WHERE root = ? AND conversation_id = ? AND seq = ? AND link = ?"
_BELONGS: Final = "SELECT 1 FROM conversations WHERE root = ? AND id = ? AND tenant = ?"
_INSERT: Final = "INSERT OR IGNORE INTO postings (scope, term, seq) VALUES (?, ?, ?)"
_SEARCH: Final = f"""
    WITH stretch (id, scope, from_seq, to_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
               json_extract(value, '$[2]'), json_extract(value, '$[3]')
        FROM json_each(?2)),
    hit (term, seq) AS MATERIALIZED (
        SELECT p.term, p.seq
        FROM stretch s CROSS JOIN json_each(?3) q CROSS JOIN postings p
          ON p.scope = s.scope AND p.term = q.value AND p.seq >= s.from_seq AND p.seq < s.to_seq),
    counted (term, matching) AS MATERIALIZED (SELECT term, count(*) FROM hit GROUP BY term),
    telling (term, weight) AS MATERIALIZED (
        SELECT term, term_weight(?4, matching)
        FROM (SELECT term, matching, sum(matching) OVER (ORDER BY matching, term) - matching AS hits FROM counted)
        WHERE hits < {RANKED_HITS}),
    best (seq, weights) AS MATERIALIZED (
        SELECT h.seq, sum(t.weight) AS weights FROM hit h JOIN telling t ON t.term = h.term
        GROUP BY h.seq ORDER BY weights DESC, h.seq DESC LIMIT ?5),
    wanted (seq, weights) AS MATERIALIZED (
        SELECT seq, max(weights)
        FROM (SELECT seq, weights FROM best
              UNION ALL SELECT seq - 1, NULL FROM best UNION ALL SELECT seq + 1, NULL FROM best)
        GROUP BY seq)
    SELECT w.weights, {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM wanted w CROSS JOIN stretch s ON w.seq >= s.from_seq AND w.seq < s.to_seq
    CROSS JOIN messages m ON m.root = ?1 AND m.conversation_id = s.id AND m.seq = w.seq
    ORDER BY w.weights IS NULL, w.weights DESC, iif(w.weights IS NULL, w.seq, -w.seq)"""  # noqa: S608 - our own names
_ERASE: Final = "DELETE FROM postings WHERE scope = ? AND seq > ?"
_HAND_OVER: Final = "UPDATE OR IGNORE postings SET scope = ? WHERE scope = ?"


def prepare(connection: sqlite3.Connection) -> None:
    """Make known to a connection what its searches call."""
    connection.create_function("term_weight", 2, weight, deterministic=True)


def index(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    placed: Sequence[tuple[str, LogMessage]],
    keys: Sequence[Sequence[int]],
) -> None:
    """Index messages, each with the id of the conversation that keeps it; not those that were erased meanwhile."""
    ours = {
        place
        for place in {place for place, _ in placed}
        if connection.execute(_BELONGS, (root, place, tenant)).fetchone()
    }
    for (place, entry), terms in zip(placed, keys, strict=True):
        if place in ours and connection.execute(_IS_KEPT, (root, place, entry.seq, entry.link)).fetchone():
            scope = scope_of(root, place)
            connection.executemany(_INSERT, [(scope, term, entry.seq) for term in terms])


def search(
    connection: sqlite3.Connection, root: str, wanted: Sequence[Stretch], keys: Sequence[int], messages: int, limit: int
) -> list[Found]:
    stretches = [(one.conversation_id, scope_of(root, one.conversation_id), one.from_seq, one.to_seq) for one in wanted]
    arguments: tuple[Any, ...] = (root, orjson.dumps(stretches).decode(), orjson.dumps(keys).decode(), messages, limit)
    rows = connection.execute(_SEARCH, arguments)
    return [Found(log_message_of(row[1:]), None if row[0] is None else score(row[0])) for row in rows]


def erase(connection: sqlite3.Connection, root: str, conversation_id: str, kept_through: int, heir: str | None) -> None:
    """Forget the words of a conversation's messages after `kept_through`; those before are the heir's now."""
    scope = scope_of(root, conversation_id)
    connection.execute(_ERASE, (scope, kept_through))
    if heir is not None:
        connection.execute(_HAND_OVER, (scope_of(root, heir), scope))
