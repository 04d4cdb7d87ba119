"""The statements for PostgreSQL only: each does a whole step in one round trip.

They are written by hand: SQLAlchemy Core can express them (data-modifying CTEs, `unnest`), but the result is hard to
read.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from app.conversation.identity import LINK_BYTES
from app.store.contract.conversations import MAX_ANCHORS
from app.store.sql import statements
from app.store.sql.rows import ANCHOR_COLUMNS, CLIENT_VERSION_COLUMNS, CONVERSATION_COLUMNS, MESSAGE_COLUMNS
from app.store.sql.statements import (
    FINGERPRINT_COLUMNS,
    IS_LEASE,
    LEASE_PARAMETERS,
    REPLACE_VERSION,
    SPEND_FINGERPRINT,
    UPDATE_HEAD,
    UPDATE_HEAD_PARAMETERS,
    build_link_match_query,
    number_parameters,
    summary_select_columns,
)

# How long a batch waits for a row lock before its appends run one by one.
BATCH_LOCK_WAIT_MS: Final = 100
_ARRAY_TYPES: Final = {
    "seq": "int",
    "body": "text",
    "link": "bytea",
    "skeleton": "bytea",
    "in_skeleton": "bool",
    "tokens": "int",
    "tokens_total": "bigint",
    "answered": "bool",
    "incomplete": "bool",
    "created_at": "timestamptz",
    "meta": "text",
}
_VERSION_TYPES: Final = {"seq": "int", "since_seq": "int", "to_seq": "int", "bodies": "text", "tokens_delta": "int"}
_MESSAGE_ARGUMENTS: Final = tuple(f"m_{name}" for name in MESSAGE_COLUMNS)
_FENCE_QUERY: Final = f"SELECT 1 FROM leases WHERE {IS_LEASE} AND expires_at > now() FOR SHARE"
"""The fence. Its row is locked: no process can claim the lease before this statement has committed."""
_RELEASED_CTE: Final = f"""
    released AS (DELETE FROM leases WHERE {IS_LEASE} AND EXISTS (SELECT FROM moved))"""
_ANCHOR_PARAMETERS: Final = ("a_digests", "a_roots", "a_ids", "a_seqs", "kept_at")
_INSERT_ANCHORS: Final = f"""
        INSERT INTO anchors ({", ".join(ANCHOR_COLUMNS)}, kept_at)
        SELECT a.*, :kept_at::timestamptz
        FROM unnest(:a_digests::bytea[], :a_roots::text[], :a_ids::text[], :a_seqs::int[]) AS a"""
_ISSUE_PARAMETERS: Final = ("f_digests", "f_roots", "f_ids", "f_seqs", "f_owners")
_GIVEN_CTE: Final = """
    given (digest, root, conversation_id, seq, owners) AS MATERIALIZED (
        SELECT * FROM unnest(:f_digests::bytea[], :f_roots::text[], :f_ids::text[], :f_seqs::int[], :f_owners::text[]))
    """
_IS_OWN_PLACE: Final = """EXISTS (
                SELECT FROM json_array_elements(g.owners::json) o
                WHERE o ->> 0 = f.conversation_id AND (o ->> 1)::int > f.seq)"""
# The first condition reads without a lock: most fingerprints that exist are spent, and many appends may issue such a
# one at once. Only a row that another transaction wrote meanwhile reaches the second condition.
_ISSUE: Final = f"""
        INSERT INTO fingerprints AS f ({", ".join(FINGERPRINT_COLUMNS)})
        SELECT {", ".join(f"g.{name}" for name in FINGERPRINT_COLUMNS)} FROM given g
        WHERE {{condition}} AND NOT EXISTS (
            SELECT FROM fingerprints f
            WHERE f.digest = g.digest AND (f.conversation_id IS NULL OR {_IS_OWN_PLACE}) OFFSET 0)
        ORDER BY g.digest
        ON CONFLICT (digest) DO UPDATE SET {SPEND_FINGERPRINT}
        WHERE f.conversation_id IS NOT NULL
          AND NOT EXISTS (SELECT FROM given g WHERE g.digest = excluded.digest AND {_IS_OWN_PLACE})"""
_NAMED_LOG_CTE: Final = """
    named (id, upto_seq) AS MATERIALIZED (
        SELECT id, head_seq FROM conversations WHERE root = :root AND id = :within AND tenant = :tenant
        UNION ALL
        SELECT e ->> 0, (e ->> 1)::int
        FROM conversations, json_array_elements(lineage::json) e
        WHERE root = :root AND id = :within AND tenant = :tenant)"""


class AppendShape(NamedTuple):
    """What an append does. Appends of one shape share one statement."""

    creates: bool
    """Creates the conversation."""
    names: bool
    """The new conversation takes the client's own id."""
    branches: bool
    """The new conversation must find its ancestors where its lineage says."""
    message_count: int
    """0, 1, or 2 for any number."""
    fenced: bool
    """Has a fence."""
    releases: bool
    """Releases the lease of the fence."""
    has_versions: bool
    """Has client versions of log messages."""
    has_anchors: bool
    issues: bool
    """Has fingerprints."""


@cache
def build_append_statement(shape: AppendShape, *, in_batch: bool = False) -> str:
    """Builds the statement that appends: fence, head, messages, release. Its row is (moved, held).

    Args:
        in_batch: many of these run in one transaction. The statement fails with `DivisionByZeroError` if the head was
            not moved, and with `LockNotAvailableError` if another transaction holds the row for long. Both roll
            everything back.

    The statement fails with `UniqueViolationError` if the conversation or the client's id exists already.
    """
    guard = " AND EXISTS (SELECT FROM held)" if shape.fenced else ""
    # set_config inside the statement saves a round trip; `true` limits the setting to the transaction.
    if in_batch:
        guard += f" AND set_config('lock_timeout', '{BATCH_LOCK_WAIT_MS}', true) IS NOT NULL"
    if shape.creates:
        parts, arguments = _build_creation_ctes(guard, names=shape.names, branches=shape.branches)
    else:
        parts, arguments = [f"moved AS ({UPDATE_HEAD}{guard} RETURNING 1)"], UPDATE_HEAD_PARAMETERS
    if shape.fenced:
        parts.insert(0, f"held AS ({_FENCE_QUERY})")
    if shape.message_count:
        parts.append(f"""
    added AS (
        INSERT INTO messages (root, conversation_id, {", ".join(MESSAGE_COLUMNS)})
        SELECT :root::text, :id::text, {_build_message_select(shape.message_count)})""")
        arguments += _MESSAGE_ARGUMENTS
    if shape.has_versions:
        parts.append(f"""
    shown AS (
        INSERT INTO client_versions (root, conversation_id, {", ".join(CLIENT_VERSION_COLUMNS)})
        SELECT :root::text, :id::text, v.*
        FROM unnest({", ".join(f":v_{name}::{_VERSION_TYPES[name]}[]" for name in CLIENT_VERSION_COLUMNS)}) AS v
        WHERE EXISTS (SELECT FROM moved){REPLACE_VERSION})""")
        arguments += tuple(f"v_{name}" for name in CLIENT_VERSION_COLUMNS)
    if shape.has_anchors:
        parts.append(f"anchored AS ({_INSERT_ANCHORS} WHERE EXISTS (SELECT FROM moved) ON CONFLICT DO NOTHING)")
        arguments += _ANCHOR_PARAMETERS
    if shape.issues:
        parts += [_GIVEN_CTE, f"issued AS ({_ISSUE.format(condition='EXISTS (SELECT FROM moved)')})"]
        arguments += _ISSUE_PARAMETERS
    if shape.fenced:
        arguments += LEASE_PARAMETERS
        if shape.releases:
            parts.append(_RELEASED_CTE)
    if in_batch:
        # executemany returns no rows, so only an error can stop the batch.
        verdict = "1 / (SELECT count(*) FROM moved)"
    else:
        verdict = "EXISTS (SELECT FROM moved), " + ("EXISTS (SELECT FROM held)" if shape.fenced else "true")
    return number_parameters(f"WITH {','.join(parts)} SELECT {verdict}", arguments, "$")


def _build_creation_ctes(guard: str, *, names: bool, branches: bool) -> tuple[list[str], tuple[str, ...]]:
    """Returns the CTEs that create a conversation, and the names of their parameters."""
    parts: list[str] = []
    arguments: tuple[str, ...] = CONVERSATION_COLUMNS
    if branches:
        # The ancestors are locked: none can be erased before the branch, which inherits from it, is stored.
        parts.append("""
    ancestors AS (
        SELECT id, head_seq FROM conversations
        WHERE root = :root AND id = ANY (:ancestors::text[]) AND tenant = :tenant FOR KEY SHARE)""")
        guard += """
          AND (SELECT count(*) FROM ancestors) = cardinality(:ancestors::text[])
          AND EXISTS (SELECT FROM ancestors WHERE id = :parent AND head_seq >= :upto_seq)"""
        arguments += ("ancestors", "parent", "upto_seq")
    parts.append(f"""
    moved AS (
        INSERT INTO conversations ({", ".join(CONVERSATION_COLUMNS)})
        SELECT {", ".join(f":{name}{_parameter_cast_suffix(name)}" for name in CONVERSATION_COLUMNS)}
        WHERE true{guard}
        RETURNING 1)""")
    if names:
        parts.append("""
    named AS (
        INSERT INTO external_ids (tenant, external_id, root, conversation_id)
        SELECT :tenant::text, :external_id::text, :root::text, :id::text WHERE EXISTS (SELECT FROM moved))""")
    return parts, arguments


_CONVERSATION_CASTS: Final = {
    "head_seq": "int",
    "head_link": "bytea",
    "head_skeleton": "bytea",
    "head_tokens_total": "bigint",
    "answered": "bool",
    "chunk_count": "int",
    "indexed_before": "int",
    "created_at": "timestamptz",
    "updated_at": "timestamptz",
}


def _parameter_cast_suffix(name: str) -> str:
    return f"::{_CONVERSATION_CASTS.get(name, 'text')}"


def _build_message_select(message_count: int) -> str:
    if message_count == 1:
        scalars = ", ".join(f":m_{name}::{_ARRAY_TYPES[name]}" for name in MESSAGE_COLUMNS)
        return f"{scalars} WHERE EXISTS (SELECT FROM moved)"
    arrays = ", ".join(f":m_{name}::{_ARRAY_TYPES[name]}[]" for name in MESSAGE_COLUMNS)
    return f"added.* FROM unnest({arrays}) AS added WHERE EXISTS (SELECT FROM moved)"


@cache
def build_link_lookup_query(*, within: bool, near: bool, with_unanswered: bool = False) -> str:
    """Builds the query of `ConversationStore.find_link_matches`. Parameters: root, tenant, [within,] [near,]
    links; each list is one bytea with the deepest link first. Rows: depth, message, conversation.

    Args:
        within: has the parameter `within`, the id of the conversation that the client named.
        near: looks for the last few links first, and for the others only if these find nothing. PostgreSQL evaluates
            that condition once and then skips the rest of the statement.
        with_unanswered: counts unanswered messages, too.
    """

    def hits(parameter: str) -> str:
        # OFFSET 0 keeps the planner from changing the join order.
        return build_link_match_query(
            f"""
            {_build_links_relation(parameter)} w
            CROSS JOIN LATERAL (SELECT * FROM messages m WHERE {{message}} OFFSET 0) m
            CROSS JOIN LATERAL (SELECT * FROM conversations c WHERE {{conversation}} OFFSET 0) c""",
            with_named=within and parameter != "near",
            with_unanswered=with_unanswered,
        )

    names: tuple[str, ...] = ("root", "tenant", "within") if within else ("root", "tenant")
    ctes = [_NAMED_LOG_CTE] if within else []
    gate = "EXISTS (SELECT FROM conversations k WHERE k.root = :root)"
    settled_rows = ""
    if near:
        ctes.append(f"near_hits AS MATERIALIZED ({hits('near')})")
        ctes.append("near AS (SELECT * FROM near_hits WHERE depth = (SELECT min(depth) FROM near_hits))")
        settled = "SELECT FROM near"
        if within:
            settled += " JOIN named ON named.id = near.c_id AND near.m_seq <= named.upto_seq"
        gate = f"NOT EXISTS ({settled}) AND {gate}"
        settled_rows = f"SELECT near.* FROM near WHERE EXISTS ({settled}) UNION ALL"
        names += ("near",)
    with_clause = f"WITH {', '.join(ctes)}" if ctes else ""
    text = f"""{with_clause} {settled_rows}
        SELECT f.* FROM ({hits("links")}) f WHERE {gate}"""
    return number_parameters(text, (*names, "links"), "$")


def _build_links_relation(parameter: str) -> str:
    """Returns SQL for a relation `(link, depth)` of links that are joined in one bytea.

    The driver takes longer to encode an array of 128 links than the server takes to split a bytea, and the server
    splits it only if it looks for these links at all. The array in the SQL makes the planner expect few rows, and so
    use the index for each link.
    """
    return f"""(
        SELECT link, depth FROM unnest(ARRAY(
            SELECT substring(:{parameter}::bytea FROM {LINK_BYTES} * n + 1 FOR {LINK_BYTES})
            FROM generate_series(0, octet_length(:{parameter}::bytea) / {LINK_BYTES} - 1) n ORDER BY n
        )) WITH ORDINALITY AS u (link, depth))"""


ADD_ANCHORS: Final = number_parameters(f"{_INSERT_ANCHORS} ON CONFLICT DO NOTHING", _ANCHOR_PARAMETERS, "$")
ISSUE_ANSWERS: Final = number_parameters(f"WITH {_GIVEN_CTE} {_ISSUE.format(condition='true')}", _ISSUE_PARAMETERS, "$")
FIND_PROOFS: Final = number_parameters(
    f"""
    SELECT f.digest, f.seq, {", ".join(f"c.{name}" for name in CONVERSATION_COLUMNS)}
    FROM unnest(:digests::bytea[]) AS d (digest)
    CROSS JOIN LATERAL (SELECT * FROM fingerprints f WHERE f.digest = d.digest OFFSET 0) f
    LEFT JOIN LATERAL (
        SELECT * FROM conversations c
        WHERE c.root = f.root AND c.id = f.conversation_id AND c.tenant = :tenant OFFSET 0) c ON true""",
    ("tenant", "digests"),
    "$",
)

FIND_ANCHORS: Final = number_parameters(
    f"""
    SELECT {", ".join(f"a.{name}" for name in ANCHOR_COLUMNS)}
    FROM unnest(:digests::bytea[]) WITH ORDINALITY AS d (digest, place)
    CROSS JOIN LATERAL (
        SELECT * FROM anchors a WHERE a.digest = d.digest ORDER BY kept_at DESC, conversation_id LIMIT {MAX_ANCHORS}) a
    ORDER BY d.place, a.kept_at DESC, a.conversation_id""",
    ("digests",),
    "$",
)


@cache
def build_summaries_query(*, on_path: bool, begins: bool, at_links: bool, with_texts: bool) -> str:
    """Builds the query of `SummaryStore.find_summaries`. Parameters: root, tenant, [ids and upto_seqs of a path,
    [from_link,]] [links].
    """
    found = []
    names: tuple[str, ...] = ("root", "tenant")
    if on_path:
        beginning = "AND k.from_link = :after" if begins else ""
        found.append(f"""
            SELECT k.* FROM chunks k
            WHERE k.root = :root AND k.tenant = :tenant {beginning} AND EXISTS (
                SELECT FROM (
                    SELECT conversation_id, seq FROM messages
                    WHERE root = :root AND link = k.to_link AND seq = k.to_seq - 1 OFFSET 0) m
                JOIN unnest(:ids::text[], :upto_seqs::int[]) AS p (id, upto_seq)
                  ON p.id = m.conversation_id AND m.seq <= p.upto_seq)""")
        names += ("ids", "upto_seqs", "after") if begins else ("ids", "upto_seqs")
    if at_links:
        # A SELECT of its own, so that each part can use its own index.
        found.append("""
            SELECT k.* FROM chunks k
            WHERE k.root = :root AND k.tenant = :tenant AND k.to_link = ANY (:links::bytea[])""")
        names += ("links",)
    text = f"""
        SELECT DISTINCT ON (k.to_seq, k.created_at, k.id) {summary_select_columns(with_texts=with_texts)}
        FROM ({" UNION ALL ".join(found)}) k
        ORDER BY k.to_seq, k.created_at, k.id"""
    return number_parameters(text, names, "$")


FENCE_QUERY: Final = number_parameters(_FENCE_QUERY, LEASE_PARAMETERS, "$")
SELECT_CONVERSATION: Final = number_parameters(statements.SELECT_CONVERSATION, ("root", "id", "tenant"), "$")
ADVANCE_INDEXED_BEFORE: Final = number_parameters(
    statements.ADVANCE_INDEXED_BEFORE, ("root", "id", "tenant", "start_seq", "end_seq"), "$"
)
