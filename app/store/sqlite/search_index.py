"""The index of words in SQLite: ordinary rows, clustered by conversation and term; and once more by tenant and term,
for which messages do not count.

Not FTS5: our terms need no tokenizer and our ranking none of its, its index could be scoped neither to one conversation
nor (before SQLite 3.43, which many systems lack) be cleared of erased messages without their text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from app.conversation.messages import Conversation, LogMessage
from app.store.contract import Found, FoundAnywhere
from app.store.lineage import Stretch, own_from, run_of, stretches
from app.store.search.index_terms import (
    DENSE_HITS,
    MOST_HITS,
    NEWEST,
    RANKED_HITS,
    scope_of,
    score,
    tenant_scope_of,
    weight,
)
from app.store.shared_redaction import REDACTED
from app.store.sql.rows import CONVERSATION_COLUMNS, MESSAGE_COLUMNS, conversation_of, log_message_of
from app.store.sql.transactions import Script

_IS_KEPT: Final = "SELECT 1 FROM messages WHERE root = ? AND conversation_id = ? AND seq = ? AND link = ?"
_BELONGS: Final = "SELECT 1 FROM conversations WHERE root = ? AND id = ? AND tenant = ?"
# One statement for thousands of rows, in the order of the key: neighbours share a page, and Python's other threads run.
_INSERT: Final = """
    INSERT OR IGNORE INTO postings (scope, term, seq)
    SELECT ?1, t.value, json_extract(m.value, '$[0]')
    FROM json_each(?2) m CROSS JOIN json_each(m.value, '$[1]') t ORDER BY 2, 3"""
_SEARCH: Final = f"""
    WITH stretch (id, scope, from_seq, to_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
               json_extract(value, '$[2]'), json_extract(value, '$[3]')
        FROM json_each(?2)),
    recent (scope, from_seq, to_seq, term, late) AS MATERIALIZED (
        SELECT s.scope, s.from_seq, s.to_seq, q.value, iif(s.to_seq - s.from_seq <= {MOST_HITS}, 0, (
            SELECT count(*) FROM postings p
            WHERE p.scope = s.scope AND p.term = q.value AND p.seq >= s.to_seq - {NEWEST} AND p.seq < s.to_seq))
        FROM stretch s CROSS JOIN json_each(?3) q),
    counted (scope, from_seq, to_seq, term, late, upto) AS MATERIALIZED (
        SELECT r.*, CASE
            WHEN r.late >= {DENSE_HITS} THEN 0
            WHEN r.late = 0 THEN (
                SELECT count(*) FROM postings p
                WHERE p.scope = r.scope AND p.term = r.term AND p.seq >= r.from_seq AND p.seq < r.to_seq)
            ELSE (
                SELECT count(*) FROM (
                    SELECT 1 FROM postings p
                    WHERE p.scope = r.scope AND p.term = r.term AND p.seq >= r.from_seq AND p.seq < r.to_seq
                    LIMIT {MOST_HITS} + 1)) END
        FROM recent r),
    shown (scope, from_seq, to_seq, term, hits, matching) AS MATERIALIZED (
        SELECT scope, from_seq, to_seq, term, upto, upto FROM counted
        WHERE upto BETWEEN 1 AND {MOST_HITS} OR upto AND NOT late
        UNION ALL
        SELECT scope, to_seq - {NEWEST}, to_seq, term, late,
               max(min(upto, {MOST_HITS}), late * (to_seq - from_seq) / {NEWEST})
        FROM counted WHERE late >= {DENSE_HITS} OR late AND upto > {MOST_HITS}),
    telling (term, weight) AS MATERIALIZED (
        SELECT term, term_weight(?4, matching)
        FROM (
            SELECT term, sum(matching) AS matching,
                   sum(sum(hits)) OVER (ORDER BY sum(matching), term) - sum(hits) AS hits
            FROM shown GROUP BY term)
        WHERE hits < {RANKED_HITS}),
    best (seq, weights) AS MATERIALIZED (
        SELECT p.seq, sum(t.weight) AS weights
        FROM telling t CROSS JOIN shown s ON s.term = t.term CROSS JOIN postings p
          ON p.scope = s.scope AND p.term = t.term AND p.seq >= s.from_seq AND p.seq < s.to_seq
        GROUP BY p.seq ORDER BY weights DESC, p.seq DESC LIMIT ?5),
    wanted (seq, weights) AS MATERIALIZED (
        SELECT seq, max(weights)
        FROM (SELECT seq, weights FROM best
              UNION ALL SELECT seq - 1, NULL FROM best UNION ALL SELECT seq + 1, NULL FROM best)
        GROUP BY seq)
    SELECT w.weights, {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM wanted w CROSS JOIN stretch s ON w.seq >= s.from_seq AND w.seq < s.to_seq
    CROSS JOIN messages m ON m.root = ?1 AND m.conversation_id = s.id AND m.seq = w.seq
    ORDER BY w.weights IS NULL, w.weights DESC, iif(w.weights IS NULL, w.seq, -w.seq)"""  # noqa: S608 - our own names
_SEARCH_ALL: Final = f"""
    WITH counted (term, matching) AS MATERIALIZED (
        SELECT q.value, (SELECT count(*) FROM tenant_postings WHERE tenant_scope = ?1 AND term = q.value)
        FROM json_each(?3) q),
    telling (term, weight) AS MATERIALIZED (
        SELECT term, term_weight((SELECT count(*) FROM tenant_scopes WHERE tenant_scope = ?1), matching)
        FROM (
            SELECT term, matching, sum(matching) OVER (ORDER BY matching, term) - matching AS hits
            FROM counted WHERE matching > 0)
        WHERE hits < {RANKED_HITS}),
    told (scope, weights) AS MATERIALIZED (
        SELECT p.scope, sum(t.weight)
        FROM telling t CROSS JOIN tenant_postings p ON p.tenant_scope = ?1 AND p.term = t.term
        GROUP BY p.scope)
    SELECT t.weights, {", ".join(f"c.{name}" for name in CONVERSATION_COLUMNS)}
    FROM told t CROSS JOIN tenant_scopes s ON s.tenant_scope = ?1 AND s.scope = t.scope
    CROSS JOIN conversations c ON c.root = s.root AND c.id = s.conversation_id AND c.tenant = ?2
    WHERE t.weights >= ifnull((SELECT weights FROM told ORDER BY weights DESC LIMIT 1 OFFSET ?4 - 1), 0)
    ORDER BY t.weights DESC, c.updated_at DESC, c.id LIMIT ?4"""  # noqa: S608 - our own names
_INSERT_FOR_TENANT: Final = """
    INSERT OR IGNORE INTO tenant_postings (tenant_scope, term, scope) SELECT ?1, value, ?2 FROM json_each(?3)"""
_INSERT_SCOPE: Final = """
    INSERT OR IGNORE INTO tenant_scopes (tenant_scope, scope, root, conversation_id) VALUES (?, ?, ?, ?)"""
_NEW_TERMS: Final = """
    SELECT value FROM json_each(?1) q WHERE NOT EXISTS (SELECT 1 FROM postings WHERE scope = ?2 AND term = q.value)"""
_POST_ALL: Final = """
    INSERT OR IGNORE INTO tenant_postings (tenant_scope, term, scope)
    SELECT DISTINCT ?1, term, scope FROM postings WHERE scope = ?2"""
_MOVE_ON: Final = """
    UPDATE conversations SET indexed_before = ?
    WHERE root = ? AND id = ? AND tenant = ? AND indexed_before BETWEEN ? AND ?"""
_MARKS: Final = "SELECT marks FROM conversations WHERE root = ? AND id = ? AND tenant = ?"


def prepare(connection: sqlite3.Connection) -> None:
    """Make known to a connection what its searches call."""
    connection.create_function("term_weight", 2, weight, deterministic=True)


def index(
    connection: sqlite3.Connection,
    conversation: Conversation,
    kept: Sequence[tuple[str, LogMessage]],
    keys: Sequence[Sequence[int]],
) -> None:
    """As `Store.index`, of messages `placed` on the conversation's path, with the term keys of each."""
    root, tenant = conversation.root, conversation.tenant
    ours = {
        place
        for place in {place for place, _ in kept}
        if connection.execute(_BELONGS, (root, place, tenant)).fetchone()
    }
    row = connection.execute(_MARKS, (root, conversation.id, tenant)).fetchone()
    redacted = set() if row is None or row[0] == "{}" else set(orjson.loads(row[0]).get(REDACTED, ()))
    stored = set()
    posted: dict[str, list[tuple[int, Sequence[int]]]] = {}
    for (place, entry), terms in zip(kept, keys, strict=True):
        if place in ours and connection.execute(_IS_KEPT, (root, place, entry.seq, entry.link)).fetchone():
            stored.add(entry.seq)
            if entry.seq not in redacted and terms:
                posted.setdefault(place, []).append((entry.seq, terms))
    for place, terms_at in posted.items():
        _post(connection, tenant, root, place, terms_at)
    start, end = run_of([entry for _, entry in kept])
    if end and stored.issuperset(range(start, end)):
        connection.execute(_MOVE_ON, (end, root, conversation.id, tenant, start, end - 1))


def _post(
    connection: sqlite3.Connection, tenant: str, root: str, place: str, terms_at: Sequence[tuple[int, Sequence[int]]]
) -> None:
    """Post terms of messages of one conversation, by seq; for the tenant those that are new in it. What lies together
    in the conversation's part of the index lies far apart in the tenant's, where each term costs a page."""
    scope, tenant_scope = scope_of(root, place), tenant_scope_of(tenant)
    is_first = connection.execute(_INSERT_SCOPE, (tenant_scope, scope, root, place)).rowcount == 1
    asked = orjson.dumps(sorted({term for _, terms in terms_at for term in terms})).decode()
    new = [term for (term,) in connection.execute(_NEW_TERMS, (asked, scope))]
    connection.execute(_INSERT, (scope, orjson.dumps(terms_at).decode()))
    if is_first:
        connection.execute(_POST_ALL, (tenant_scope, scope))
    else:
        connection.execute(_INSERT_FOR_TENANT, (tenant_scope, scope, orjson.dumps(new).decode()))


def search(
    connection: sqlite3.Connection, root: str, wanted: Sequence[Stretch], keys: Sequence[int], messages: int, limit: int
) -> list[Found]:
    stretches = [(one.conversation_id, scope_of(root, one.conversation_id), one.from_seq, one.to_seq) for one in wanted]
    arguments: tuple[Any, ...] = (root, orjson.dumps(stretches).decode(), orjson.dumps(keys).decode(), messages, limit)
    rows = connection.execute(_SEARCH, arguments)
    return [Found(log_message_of(row[1:]), None if row[0] is None else score(row[0])) for row in rows]


def search_all(connection: sqlite3.Connection, tenant: str, keys: Sequence[int], limit: int) -> list[FoundAnywhere]:
    arguments = (tenant_scope_of(tenant), tenant, orjson.dumps(keys).decode(), limit)
    found = []
    for weights, *row in connection.execute(_SEARCH_ALL, arguments).fetchall():
        conversation = conversation_of(row)
        start, end = own_from(conversation), conversation.head_seq + 1
        own = stretches(conversation.path, start, end)
        hits = search(connection, conversation.root, own, keys, end - start, 1)
        found += [FoundAnywhere(conversation, hit.message, score(weights)) for hit in hits if hit.score is not None]
    return found


def forget_all(connection: sqlite3.Connection) -> None:
    """Make nothing findable any more."""
    for table in ("postings", "tenant_postings", "tenant_scopes"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
    connection.execute("UPDATE conversations SET indexed_before = 0 WHERE indexed_before > 0")


class SqliteWords:
    """`scripts.Words` for these tables."""

    def forget(self, *, tenant: str, root: str, conversation_id: str, seq: int) -> Script[None]:
        scope, tenant_scope = scope_of(root, conversation_id), tenant_scope_of(tenant)
        yield (
            """
            DELETE FROM tenant_postings
            WHERE tenant_scope = ?1 AND scope = ?2 AND term IN (SELECT term FROM postings WHERE scope = ?2 AND seq = ?3)
              AND NOT EXISTS (
                SELECT 1 FROM postings p WHERE p.scope = ?2 AND p.term = tenant_postings.term AND p.seq <> ?3)""",
            (tenant_scope, scope, seq),
        )
        yield "DELETE FROM postings WHERE scope = ? AND seq = ?", (scope, seq)
        yield (
            """
            DELETE FROM tenant_scopes WHERE tenant_scope = ?1 AND scope = ?2
              AND NOT EXISTS (SELECT 1 FROM postings WHERE scope = ?2)""",
            (tenant_scope, scope),
        )

    def erase(
        self, *, tenant: str, root: str, conversation_id: str, kept_through: int, heir: str | None
    ) -> Script[None]:
        scope, tenant_scope = scope_of(root, conversation_id), tenant_scope_of(tenant)
        yield (
            """
            DELETE FROM tenant_postings
            WHERE tenant_scope = ?1 AND scope = ?2 AND term IN (SELECT term FROM postings WHERE scope = ?2)""",
            (tenant_scope, scope),
        )
        yield "DELETE FROM tenant_scopes WHERE tenant_scope = ? AND scope = ?", (tenant_scope, scope)
        yield "DELETE FROM postings WHERE scope = ? AND seq > ?", (scope, kept_through)
        if heir is None:
            return
        inheriting = scope_of(root, heir)
        yield "UPDATE OR IGNORE postings SET scope = ? WHERE scope = ?", (inheriting, scope)
        yield _POST_ALL, (tenant_scope, inheriting)
        yield (
            """
            INSERT OR IGNORE INTO tenant_scopes (tenant_scope, scope, root, conversation_id)
            SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM postings WHERE scope = ?2)""",
            (tenant_scope, inheriting, root, heir),
        )
