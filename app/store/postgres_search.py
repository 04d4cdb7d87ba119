"""The index of words in PostgreSQL: one row for each message, with its term keys under a GIN index.

Keys are scoped to their conversation (`store.search`), so an index entry holds messages of one conversation only, and
what others wrote neither shows nor slows a search. Rows are led by the root, as all are.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.store.rows import MESSAGE_COLUMNS
from app.store.search import RANKED_HITS, TERM_BITS
from app.store.statements import numbered

# The conversations are locked so that none is erased between the look at its messages and the insert.
INDEX: Final = numbered(
    """
    WITH ours AS (
        SELECT id FROM conversations
        WHERE root = :root AND tenant = :tenant AND id = ANY (:ids::text[]) FOR KEY SHARE)
    INSERT INTO message_terms (root, conversation_id, seq, terms)
    SELECT m.root, m.conversation_id, m.seq, e.terms::bigint[]
    FROM unnest(:ids::text[], :seqs::int[], :links::bytea[], :terms::text[]) AS e (id, seq, link, terms)
    JOIN ours ON ours.id = e.id
    JOIN messages m ON m.root = :root AND m.conversation_id = e.id AND m.seq = e.seq AND m.link = e.link
    ON CONFLICT (root, conversation_id, seq) DO NOTHING""",
    ("root", "tenant", "ids", "seqs", "links", "terms"),
    "$",
)

# OFFSET 0 keeps the planner at the words' own index: by the key it would read whole conversations.
SEARCH: Final = numbered(
    f"""
    WITH stretch AS (
        SELECT * FROM unnest(:ids::text[], :prefixes::bigint[], :from_seqs::int[], :to_seqs::int[])
            AS s (id, prefix, from_seq, to_seq)),
    hit AS MATERIALIZED (
        SELECT q.term, p.seq
        FROM stretch s CROSS JOIN unnest(:terms::bigint[]) AS q (term)
        CROSS JOIN LATERAL (
            SELECT root, conversation_id, seq FROM message_terms WHERE terms @> ARRAY[s.prefix | q.term] OFFSET 0) p
        WHERE p.root = :root AND p.conversation_id = s.id AND p.seq >= s.from_seq AND p.seq < s.to_seq),
    telling AS (
        SELECT term, round(1000 * ln(1 + (:messages::float8 - matching + 0.5) / (matching + 0.5)))::bigint AS weight
        FROM (
            SELECT term, count(*) AS matching, sum(count(*)) OVER (ORDER BY count(*), term) - count(*) AS hits
            FROM hit GROUP BY term) c
        WHERE hits < {RANKED_HITS}),
    best AS MATERIALIZED (
        SELECT seq, sum(weight)::bigint AS weights FROM hit JOIN telling USING (term)
        GROUP BY seq ORDER BY weights DESC, seq DESC LIMIT :limit),
    wanted AS MATERIALIZED (
        SELECT seq, max(weights) AS weights
        FROM (SELECT seq, weights FROM best
              UNION ALL SELECT seq - 1, NULL FROM best UNION ALL SELECT seq + 1, NULL FROM best) w
        GROUP BY seq)
    SELECT w.weights, {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM wanted w JOIN stretch s ON w.seq >= s.from_seq AND w.seq < s.to_seq
    CROSS JOIN LATERAL (
        SELECT * FROM messages m WHERE m.root = :root AND m.conversation_id = s.id AND m.seq = w.seq OFFSET 0) m
    ORDER BY w.weights IS NULL, w.weights DESC, CASE WHEN w.weights IS NULL THEN w.seq ELSE -w.seq END""",
    ("root", "ids", "prefixes", "from_seqs", "to_seqs", "terms", "messages", "limit"),
    "$",
)

ERASE: Final = numbered(
    "DELETE FROM message_terms WHERE root = :root AND conversation_id = :id AND seq > :kept_through",
    ("root", "id", "kept_through"),
    "$",
)

HAND_OVER: Final = numbered(
    f"""
    UPDATE message_terms
    SET conversation_id = :heir,
        terms = ARRAY(SELECT :prefix::bigint | (term & {(1 << TERM_BITS) - 1}) FROM unnest(terms) AS t (term))
    WHERE root = :root AND conversation_id = :id""",
    ("root", "id", "heir", "prefix"),
    "$",
)


def array_text(prefix: int, keys: Sequence[int]) -> str:
    """Term keys as PostgreSQL writes an array: rows' arrays differ in length, which the driver cannot send in one."""
    return f"{{{','.join(str(prefix | key) for key in keys)}}}"
