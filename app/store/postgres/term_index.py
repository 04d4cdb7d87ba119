"""The search index in PostgreSQL: one row for each message, with its term keys under a GIN index.

Keys are scoped to their conversation (`store.search.term_ranking`): an entry of the GIN index has messages of one
conversation only, so messages of others are never returned and do not slow a search. Keys of rows begin with the root,
as everywhere, except in the index over all of a tenant's conversations, where they begin with the tenant and are read
by statements of their own.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.store.search.term_ranking import (
    COMMON_NEWEST_HITS,
    COMMON_TERM_HITS,
    MAX_RANKED_HITS,
    NEIGHBOUR_STEPS,
    NEWEST_MESSAGES,
    TERM_BITS,
    hash_conversation_scope,
)
from app.store.sql.dialects import POSTGRES
from app.store.sql.rows import CONVERSATION_COLUMNS, MESSAGE_COLUMNS
from app.store.sql.search_index import SearchIndexCleanup
from app.store.sql.statements import number_parameters

_TERM_MASK: Final = (1 << TERM_BITS) - 1

# The conversations are locked, so that none is erased, and none of their messages redacted, between the read of the
# messages and the insert. Rows: the messages that are stored, and whether they are redacted.
INSERT_TERMS: Final = number_parameters(
    """
    WITH ours AS (
        SELECT id, marks FROM conversations
        WHERE root = :root AND tenant = :tenant AND id = ANY (:ids::text[]) FOR KEY SHARE),
    kept AS MATERIALIZED (
        SELECT e.id, e.seq, e.terms, EXISTS (
            SELECT FROM json_array_elements_text(ours.marks::json -> 'redacted') AS r (seq) WHERE r.seq::int = e.seq
        ) AS redacted
        FROM unnest(:ids::text[], :seqs::int[], :links::bytea[], :terms::text[]) AS e (id, seq, link, terms)
        JOIN ours ON ours.id = e.id
        JOIN messages m ON m.root = :root AND m.conversation_id = e.id AND m.seq = e.seq AND m.link = e.link),
    added AS (
        INSERT INTO message_terms (root, conversation_id, seq, terms)
        SELECT :root::text, id, seq, terms::bigint[] FROM kept WHERE NOT redacted
        ON CONFLICT (root, conversation_id, seq) DO NOTHING)
    SELECT id, seq, redacted FROM kept""",
    ("root", "tenant", "ids", "seqs", "links", "terms"),
    "$",
)

CLEAR_INDEX: Final = "TRUNCATE message_terms, tenant_postings, tenant_scopes"
RESET_INDEXED_BEFORE: Final = """
    UPDATE conversations SET indexed_before = 0
    WHERE (root, id) IN (SELECT root, id FROM conversations WHERE indexed_before > 0 LIMIT 1000)
    RETURNING 1"""
"""Resets up to 1000 conversations; the caller repeats it until no row is returned."""

INSERT_TENANT_POSTINGS: Final = number_parameters(
    """
    INSERT INTO tenant_postings (tenant_scope, term, scope)
    SELECT :tenant_scope::bigint, term, scope FROM unnest(:terms::bigint[], :scopes::bigint[]) AS p (term, scope)
    ON CONFLICT (tenant_scope, term, scope) DO NOTHING""",
    ("tenant_scope", "terms", "scopes"),
    "$",
)

INSERT_TENANT_SCOPES: Final = number_parameters(
    """
    INSERT INTO tenant_scopes (tenant_scope, scope, root, conversation_id)
    SELECT :tenant_scope::bigint, scope, :root::text, id FROM unnest(:scopes::bigint[], :ids::text[]) AS s (scope, id)
    ON CONFLICT (tenant_scope, scope) DO NOTHING""",
    ("tenant_scope", "root", "scopes", "ids"),
    "$",
)


# `stretch` has the segments of the log, `best` the messages with the highest weights. The bounds in
# `store.search.term_ranking` say what is read, and `rank_by_weight` how it is weighed. OFFSET 0 makes the planner use
# the GIN index: by the primary key it would read whole conversations. The GIN index returns rows in table order, and
# the read stops when it has enough, so common terms are first looked for among the newest messages.
SEARCH_LOG: Final = number_parameters(
    f"""
    WITH stretch AS (
        SELECT * FROM unnest(:ids::text[], :prefixes::bigint[], :from_seqs::int[], :to_seqs::int[])
            AS s (id, prefix, from_seq, to_seq)),
    recent AS MATERIALIZED (
        SELECT s.id, t.term & {_TERM_MASK} AS term, p.seq
        FROM stretch s
        CROSS JOIN LATERAL (
            SELECT seq, terms FROM message_terms
            WHERE root = :root AND conversation_id = s.id AND seq >= s.to_seq - {NEWEST_MESSAGES}
              AND seq < s.to_seq OFFSET 0) p
        CROSS JOIN LATERAL unnest(p.terms) AS t (term)
        WHERE s.to_seq - s.from_seq > {COMMON_TERM_HITS} AND t.term & {_TERM_MASK} = ANY (:terms::bigint[])),
    asked AS MATERIALIZED (
        SELECT s.*, q.term, coalesce(r.late, 0) AS late
        FROM stretch s CROSS JOIN unnest(:terms::bigint[]) AS q (term)
        LEFT JOIN (SELECT id, term, count(*) AS late FROM recent GROUP BY id, term) r USING (id, term)),
    early AS MATERIALIZED (
        SELECT a.id, a.term, p.seq
        FROM asked a
        CROSS JOIN LATERAL (
            SELECT seq
            FROM (
                SELECT root, conversation_id, seq FROM message_terms WHERE terms @> ARRAY[a.prefix | a.term] OFFSET 0) o
            WHERE o.root = :root AND o.conversation_id = a.id AND o.seq >= a.from_seq AND o.seq < a.to_seq
            LIMIT CASE WHEN a.late > 0 THEN {COMMON_TERM_HITS} + 1 END) p
        WHERE a.late < {COMMON_NEWEST_HITS}),
    counted AS MATERIALIZED (
        SELECT id, term, late, to_seq - from_seq AS length, coalesce(upto, 0) AS upto,
               late >= {COMMON_NEWEST_HITS} OR (late > 0 AND coalesce(upto, 0) > {COMMON_TERM_HITS}) AS is_common
        FROM asked LEFT JOIN (SELECT id, term, count(*) AS upto FROM early GROUP BY id, term) e USING (id, term)),
    telling AS (
        SELECT term, round(1000 * ln(1 + (:messages::float8 - matching + 0.5) / (matching + 0.5)))::bigint AS weight
        FROM (
            SELECT term, sum(matching)::bigint AS matching,
                   sum(sum(held)) OVER (ORDER BY sum(matching), term) - sum(held) AS hits
            FROM (
                SELECT term, CASE WHEN is_common THEN late ELSE upto END AS held,
                       CASE WHEN is_common
                       THEN greatest(least(upto, {COMMON_TERM_HITS}), late * length / {NEWEST_MESSAGES}) ELSE upto
                       END AS matching
                FROM counted WHERE late > 0 OR upto > 0) m
            GROUP BY term) c
        WHERE hits < {MAX_RANKED_HITS}),
    best AS MATERIALIZED (
        SELECT seq, sum(weight)::bigint AS weights
        FROM (
            SELECT id, term, seq, false AS is_common FROM early
            UNION ALL SELECT id, term, seq, true FROM recent) h
        JOIN counted USING (id, term, is_common) JOIN telling USING (term)
        GROUP BY seq ORDER BY weights DESC, seq DESC LIMIT :limit::bigint),
    steps (step) AS (VALUES {", ".join(f"({step})" for step in NEIGHBOUR_STEPS)}),
    wanted AS MATERIALIZED (
        SELECT seq, max(weights) AS weights, min(distance) AS distance
        FROM (SELECT seq, weights, 0 AS distance FROM best
              UNION ALL SELECT seq + step, NULL, abs(step) FROM best CROSS JOIN steps) w
        GROUP BY seq)
    SELECT w.weights, {", ".join(f"m.{name}" for name in MESSAGE_COLUMNS)}
    FROM wanted w JOIN stretch s ON w.seq >= s.from_seq AND w.seq < s.to_seq
    CROSS JOIN LATERAL (
        SELECT * FROM messages m WHERE m.root = :root AND m.conversation_id = s.id AND m.seq = w.seq OFFSET 0) m
    ORDER BY w.distance, w.weights DESC, CASE WHEN w.weights IS NULL THEN w.seq ELSE -w.seq END""",
    ("root", "ids", "prefixes", "from_seqs", "to_seqs", "terms", "messages", "limit"),
    "$",
)

SEARCH_TENANT: Final = number_parameters(
    f"""
    WITH hit AS MATERIALIZED (
        SELECT q.term, p.scope
        FROM unnest(:terms::bigint[]) AS q (term)
        CROSS JOIN LATERAL (
            SELECT scope FROM tenant_postings WHERE tenant_scope = :tenant_scope AND term = q.term OFFSET 0) p),
    telling AS (
        SELECT term, round(1000 * ln(1 + (held - matching + 0.5) / (matching + 0.5)))::bigint AS weight
        FROM (
            SELECT term, count(*) AS matching, sum(count(*)) OVER (ORDER BY count(*), term) - count(*) AS hits
            FROM hit GROUP BY term) c
        CROSS JOIN (SELECT count(*)::float8 AS held FROM tenant_scopes WHERE tenant_scope = :tenant_scope) n
        WHERE hits < {MAX_RANKED_HITS}),
    told AS MATERIALIZED (
        SELECT scope, sum(weight)::bigint AS weights FROM hit JOIN telling USING (term) GROUP BY scope)
    SELECT t.weights, {", ".join(f"c.{name}" for name in CONVERSATION_COLUMNS)}
    FROM (
        SELECT * FROM told WHERE weights >= coalesce(
            (SELECT weights FROM told ORDER BY weights DESC LIMIT 1 OFFSET :limit::bigint - 1), 0)) t
    CROSS JOIN LATERAL (
        SELECT * FROM tenant_scopes s WHERE s.tenant_scope = :tenant_scope AND s.scope = t.scope OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT * FROM conversations c
        WHERE c.root = s.root AND c.id = s.conversation_id AND c.tenant = :tenant OFFSET 0) c
    ORDER BY t.weights DESC, c.updated_at DESC, c.id LIMIT :limit::bigint""",
    ("tenant_scope", "tenant", "terms", "limit"),
    "$",
)

_HERE: Final = "root = :root AND conversation_id = :id"
_TERM: Final = f"term & {_TERM_MASK}"
_TERMS: Final = f"SELECT {_TERM} AS term FROM message_terms CROSS JOIN unnest(terms) AS t (term) WHERE {_HERE}"


_WITH_NEW_PREFIX: Final = f"ARRAY(SELECT :to_prefix::bigint | ({_TERM}) FROM unnest(terms) AS t (term))"
SEARCH_INDEX_CLEANUP: Final = SearchIndexCleanup(
    dialect=POSTGRES,
    rows=f"message_terms WHERE {_HERE}",
    terms=_TERMS,
    is_term_in="term = ANY (ARRAY({terms}))",
    has_terms=f"SELECT FROM message_terms WHERE {_HERE} AND cardinality(terms) > 0",
    is_elsewhere=f"""
        SELECT FROM (
            SELECT root, conversation_id, seq FROM message_terms
            WHERE terms @> ARRAY[:prefix::bigint | tenant_postings.term] OFFSET 0) o
        WHERE {_HERE} AND seq <> :seq""",
    copy=f"""
        INSERT INTO message_terms (root, conversation_id, seq, terms)
        SELECT root, :to_id::text, seq, {_WITH_NEW_PREFIX}
        FROM message_terms WHERE {_HERE} AND seq >= :from_seq AND seq < :to_seq
        ON CONFLICT (root, conversation_id, seq) DO NOTHING""",
    hand_over=f"UPDATE message_terms SET conversation_id = :to_id, terms = {_WITH_NEW_PREFIX} WHERE {_HERE}",
)


def build_posting_columns(root: str, terms_by_conversation: Mapping[str, set[int]]) -> tuple[list[int], list[int]]:
    """Returns terms and scopes of the rows to insert, always in one order, so that two writers of the same rows never
    wait for each other in a circle.
    """
    pairs = sorted(
        (hash_conversation_scope(root, place), term) for place, terms in terms_by_conversation.items() for term in terms
    )
    return [term for _, term in pairs], [scope for scope, _ in pairs]


def render_term_array(prefix: int, keys: Sequence[int]) -> str:
    """Renders term keys as the text of a PostgreSQL array. The arrays of several rows differ in length, which the
    driver cannot send as one argument.
    """
    return f"{{{','.join(str(prefix | key) for key in keys)}}}"
