"""The search index in SQLite: ordinary rows, clustered by conversation and term; and once more by tenant and term,
without messages.

FTS5 is not used: the terms need no tokenizer and the ranking is our own; an FTS5 index cannot be limited to one
conversation, and before SQLite 3.43, which many systems lack, it cannot remove erased messages without their text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import orjson

from app.conversation.conversation_types import Conversation, LogMessage
from app.store.lineage import find_gapless_leading_range
from app.store.redaction_effects import REDACTED_KEY
from app.store.search.term_ranking import (
    COMMON_NEWEST_HITS,
    COMMON_TERM_HITS,
    MAX_RANKED_HITS,
    NEIGHBOUR_STEPS,
    NEWEST_MESSAGES,
    hash_conversation_scope,
    hash_tenant_scope,
    term_weight,
)
from app.store.sql.dialects import SQLITE
from app.store.sql.rows import CONVERSATION_COLUMNS, MESSAGE_COLUMNS
from app.store.sql.search_index import SearchIndexCleanup
from app.store.sql.statements import ADVANCE_INDEXED_BEFORE

_IS_STORED: Final = "SELECT 1 FROM messages WHERE root = ? AND conversation_id = ? AND seq = ? AND link = ?"
_IS_TENANTS_CONVERSATION: Final = "SELECT 1 FROM conversations WHERE root = ? AND id = ? AND tenant = ?"
# One statement for thousands of rows, in key order: neighbouring rows share a page, and one call lets Python's other
# threads run meanwhile.
_INSERT_POSTINGS: Final = """
    INSERT OR IGNORE INTO postings (scope, term, seq)
    SELECT ?1, t.value, json_extract(m.value, '$[0]')
    FROM json_each(?2) m CROSS JOIN json_each(m.value, '$[1]') t ORDER BY 2, 3"""
# The bounds in `term_ranking` say what is read, and `rank_by_weight` how it is weighed. `recent`: hits among the newest
# messages of long segments; `counted`: hits, counted only as far as needed; `shown`: where each term is read;
# `telling`: terms with weights, rarest first, until MAX_RANKED_HITS; `best` and `wanted`: the results and their
# neighbours. CROSS JOIN fixes SQLite's join order.
SEARCH_LOG: Final = f"""
    WITH stretch (id, scope, from_seq, to_seq) AS MATERIALIZED (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
               json_extract(value, '$[2]'), json_extract(value, '$[3]')
        FROM json_each(?2)),
    recent (scope, from_seq, to_seq, term, late) AS MATERIALIZED (
        SELECT s.scope, s.from_seq, s.to_seq, q.value, iif(s.to_seq - s.from_seq <= {COMMON_TERM_HITS}, 0, (
            SELECT count(*) FROM postings p
            WHERE p.scope = s.scope AND p.term = q.value AND p.seq >= s.to_seq - {NEWEST_MESSAGES}
              AND p.seq < s.to_seq))
        FROM stretch s CROSS JOIN json_each(?3) q),
    counted (scope, from_seq, to_seq, term, late, upto) AS MATERIALIZED (
        SELECT r.*, CASE
            WHEN r.late >= {COMMON_NEWEST_HITS} THEN 0
            WHEN r.late = 0 THEN (
                SELECT count(*) FROM postings p
                WHERE p.scope = r.scope AND p.term = r.term AND p.seq >= r.from_seq AND p.seq < r.to_seq)
            ELSE (
                SELECT count(*) FROM (
                    SELECT 1 FROM postings p
                    WHERE p.scope = r.scope AND p.term = r.term AND p.seq >= r.from_seq AND p.seq < r.to_seq
                    LIMIT {COMMON_TERM_HITS} + 1)) END
        FROM recent r),
    shown (scope, from_seq, to_seq, term, hits, matching) AS MATERIALIZED (
        SELECT scope, from_seq, to_seq, term, upto, upto FROM counted
        WHERE upto BETWEEN 1 AND {COMMON_TERM_HITS} OR upto AND NOT late
        UNION ALL
        SELECT scope, to_seq - {NEWEST_MESSAGES}, to_seq, term, late,
               max(min(upto, {COMMON_TERM_HITS}), late * (to_seq - from_seq) / {NEWEST_MESSAGES})
        FROM counted WHERE late >= {COMMON_NEWEST_HITS} OR late AND upto > {COMMON_TERM_HITS}),
    telling (term, weight) AS MATERIALIZED (
        SELECT term, term_weight(?4, matching)
        FROM (
            SELECT term, sum(matching) AS matching,
                   sum(sum(hits)) OVER (ORDER BY sum(matching), term) - sum(hits) AS hits
            FROM shown GROUP BY term)
        WHERE hits < {MAX_RANKED_HITS}),
    best (seq, weights) AS MATERIALIZED (
        SELECT p.seq, sum(t.weight) AS weights
        FROM telling t CROSS JOIN shown s ON s.term = t.term CROSS JOIN postings p
          ON p.scope = s.scope AND p.term = t.term AND p.seq >= s.from_seq AND p.seq < s.to_seq
        GROUP BY p.seq ORDER BY weights DESC, p.seq DESC LIMIT ?5),
    steps (step) AS (VALUES {", ".join(f"({step})" for step in NEIGHBOUR_STEPS)}),
    wanted (seq, weights, distance) AS MATERIALIZED (
        SELECT seq, max(weights), min(distance)
        FROM (SELECT seq, weights, 0 AS distance FROM best
              UNION ALL SELECT seq + step, NULL, abs(step) FROM best CROSS JOIN steps)
        GROUP BY seq)
    SELECT w.weights, {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM wanted w CROSS JOIN stretch s ON w.seq >= s.from_seq AND w.seq < s.to_seq
    CROSS JOIN messages m ON m.root = ?1 AND m.conversation_id = s.id AND m.seq = w.seq
    ORDER BY w.distance, w.weights DESC, iif(w.weights IS NULL, w.seq, -w.seq)"""  # noqa: S608 - our own names
SEARCH_TENANT: Final = f"""
    WITH counted (term, matching) AS MATERIALIZED (
        SELECT q.value, (SELECT count(*) FROM tenant_postings WHERE tenant_scope = ?1 AND term = q.value)
        FROM json_each(?3) q),
    telling (term, weight) AS MATERIALIZED (
        SELECT term, term_weight((SELECT count(*) FROM tenant_scopes WHERE tenant_scope = ?1), matching)
        FROM (
            SELECT term, matching, sum(matching) OVER (ORDER BY matching, term) - matching AS hits
            FROM counted WHERE matching > 0)
        WHERE hits < {MAX_RANKED_HITS}),
    told (scope, weights) AS MATERIALIZED (
        SELECT p.scope, sum(t.weight)
        FROM telling t CROSS JOIN tenant_postings p ON p.tenant_scope = ?1 AND p.term = t.term
        GROUP BY p.scope)
    SELECT t.weights, {", ".join(f"c.{name}" for name in CONVERSATION_COLUMNS)}
    FROM told t CROSS JOIN tenant_scopes s ON s.tenant_scope = ?1 AND s.scope = t.scope
    CROSS JOIN conversations c ON c.root = s.root AND c.id = s.conversation_id AND c.tenant = ?2
    WHERE t.weights >= ifnull((SELECT weights FROM told ORDER BY weights DESC LIMIT 1 OFFSET ?4 - 1), 0)
    ORDER BY t.weights DESC, c.updated_at DESC, c.id LIMIT ?4"""  # noqa: S608 - our own names
_INSERT_TENANT_POSTINGS: Final = """
    INSERT OR IGNORE INTO tenant_postings (tenant_scope, term, scope) SELECT ?1, value, ?2 FROM json_each(?3)"""
_INSERT_SCOPE: Final = """
    INSERT OR IGNORE INTO tenant_scopes (tenant_scope, scope, root, conversation_id) VALUES (?, ?, ?, ?)"""
_NEW_TERMS: Final = """
    SELECT value FROM json_each(?1) q WHERE NOT EXISTS (SELECT 1 FROM postings WHERE scope = ?2 AND term = q.value)"""
_COPY_POSTINGS_TO_TENANT: Final = """
    INSERT OR IGNORE INTO tenant_postings (tenant_scope, term, scope)
    SELECT DISTINCT ?1, term, scope FROM postings WHERE scope = ?2"""
_READ_MARKS: Final = "SELECT marks FROM conversations WHERE root = ? AND id = ? AND tenant = ?"


def register_sql_functions(connection: sqlite3.Connection) -> None:
    """Registers the SQL functions that searches call."""
    connection.create_function("term_weight", 2, term_weight, deterministic=True)


def index_messages(
    connection: sqlite3.Connection,
    conversation: Conversation,
    located_messages: Sequence[tuple[str, LogMessage]],
    keys: Sequence[Sequence[int]],
) -> None:
    """As `ConversationStore.index_messages`.

    Args:
        located_messages: messages, each with the id of the conversation whose rows hold it.
        keys: the term keys of each message.
    """
    root, tenant = conversation.root, conversation.tenant
    tenant_conversation_ids = {
        conversation_id
        for conversation_id in {conversation_id for conversation_id, _ in located_messages}
        if connection.execute(_IS_TENANTS_CONVERSATION, (root, conversation_id, tenant)).fetchone()
    }
    row = connection.execute(_READ_MARKS, (root, conversation.id, tenant)).fetchone()
    redacted = set() if row is None or row[0] == "{}" else set(orjson.loads(row[0]).get(REDACTED_KEY, ()))
    stored = set()
    posted: dict[str, list[tuple[int, Sequence[int]]]] = {}
    for (conversation_id, entry), terms in zip(located_messages, keys, strict=True):
        # Compared by link: the row may be gone, or belong to another message since.
        if (
            conversation_id in tenant_conversation_ids
            and connection.execute(_IS_STORED, (root, conversation_id, entry.seq, entry.link)).fetchone()
        ):
            stored.add(entry.seq)
            if entry.seq not in redacted and terms:
                posted.setdefault(conversation_id, []).append((entry.seq, terms))
    for conversation_id, terms_at in posted.items():
        _index_terms(connection, tenant, root, conversation_id, terms_at)
    start, end = find_gapless_leading_range([entry for _, entry in located_messages])
    if end and stored.issuperset(range(start, end)):
        place = {"root": root, "id": conversation.id, "tenant": tenant}
        connection.execute(ADVANCE_INDEXED_BEFORE, {**place, "start_seq": start, "end_seq": end})


def _index_terms(
    connection: sqlite3.Connection,
    tenant: str,
    root: str,
    conversation_id: str,
    terms_by_seq: Sequence[tuple[int, Sequence[int]]],
) -> None:
    """Inserts the terms of one conversation's messages, and for the tenant the terms that are new in the conversation.

    Only the new ones: rows of one conversation lie together in `postings`, but far apart in `tenant_postings`, where
    each term costs a page.
    """
    scope, tenant_scope = hash_conversation_scope(root, conversation_id), hash_tenant_scope(tenant)
    is_first = connection.execute(_INSERT_SCOPE, (tenant_scope, scope, root, conversation_id)).rowcount == 1
    term_list = orjson.dumps(sorted({term for _, terms in terms_by_seq for term in terms})).decode()
    # Read before the postings are inserted: afterwards no term is new.
    new = [term for (term,) in connection.execute(_NEW_TERMS, (term_list, scope))]
    connection.execute(_INSERT_POSTINGS, (scope, orjson.dumps(terms_by_seq).decode()))
    if is_first:
        connection.execute(_COPY_POSTINGS_TO_TENANT, (tenant_scope, scope))
    else:
        connection.execute(_INSERT_TENANT_POSTINGS, (tenant_scope, scope, orjson.dumps(new).decode()))


def clear_search_index(connection: sqlite3.Connection) -> None:
    """Deletes the search index of all tenants."""
    for table in ("postings", "tenant_postings", "tenant_scopes"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
    connection.execute("UPDATE conversations SET indexed_before = 0 WHERE indexed_before > 0")


SEARCH_INDEX_CLEANUP: Final = SearchIndexCleanup(
    dialect=SQLITE,
    rows="postings WHERE scope = :scope",
    terms="SELECT term FROM postings WHERE scope = :scope",
    is_term_in="term IN ({terms})",
    has_terms="SELECT 1 FROM postings WHERE scope = :scope",
    is_elsewhere="""
        SELECT 1 FROM postings p WHERE p.scope = :scope AND p.term = tenant_postings.term AND p.seq <> :seq""",
    copy="""
        INSERT OR IGNORE INTO postings (scope, term, seq)
        SELECT :to_scope, term, seq FROM postings WHERE scope = :scope AND seq >= :from_seq AND seq < :to_seq""",
    hand_over="UPDATE OR IGNORE postings SET scope = :to_scope WHERE scope = :scope",
)
