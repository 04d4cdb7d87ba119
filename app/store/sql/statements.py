"""The statements that SQLite and PostgreSQL share: plain SQL with `:name` parameters, which are numbered for each
driver.

Backends run the text on the bare driver with a tuple of arguments, in the order that stands beside each statement.
`build_link_match_query` joins against a list of links, which is an array on PostgreSQL and a VALUES list on SQLite.
Both databases must be told the join order.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final

from app.store.contract.conversations import MAX_LINK_MATCHES
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES
from app.store.sql.rows import (
    ANCHOR_COLUMNS,
    CLIENT_VERSION_COLUMNS,
    CONVERSATION_COLUMNS,
    HEAD_COLUMNS,
    MESSAGE_COLUMNS,
    SUMMARY_COLUMNS,
)

MESSAGE_INSERT_COLUMNS: Final = ("root", "conversation_id", *MESSAGE_COLUMNS)
CLIENT_VERSION_INSERT_COLUMNS: Final = ("root", "conversation_id", *CLIENT_VERSION_COLUMNS)
SUMMARY_INSERT_COLUMNS: Final = ("root", "tenant", "is_fold", *SUMMARY_COLUMNS)
FINGERPRINT_COLUMNS: Final = ("digest", "root", "conversation_id", "seq")
SPEND_FINGERPRINT: Final = "root = NULL, conversation_id = NULL, seq = NULL"
UPDATE_HEAD_PARAMETERS: Final = ("root", "id", "tenant", "after_seq", "total_before", *HEAD_COLUMNS)
# Compare and set: the total is compared, too, because a redaction changes totals without moving the head.
UPDATE_HEAD: Final = f"""
        UPDATE conversations SET {", ".join(f"{name} = :{name}" for name in HEAD_COLUMNS)}
        WHERE root = :root AND id = :id AND tenant = :tenant
          AND head_seq = :after_seq AND head_tokens_total = :total_before"""
LEASE_PARAMETERS: Final = ("lease_root", "lease_key", "holder", "token")
IS_LEASE: Final = "root = :lease_root AND key = :lease_key AND holder = :holder AND token = :token"


def number_parameters(sql: str, names: Sequence[str], placeholder: str) -> str:
    """Replaces each `:name` by its number in `names`, in the form of the driver (`?1` or `$1`).

    Raises:
        ValueError: one of `names` is not in the text.
    """
    numbers = {name: f"{placeholder}{number}" for number, name in enumerate(names, start=1)}
    # The lookbehind skips PostgreSQL's casts (`::text`). An unused name is a mistake in a statement: asyncpg would
    # refuse the argument, SQLite would ignore it.
    unused = numbers.keys() - set(re.findall(r"(?<!:):(\w+)", sql))
    if unused:
        raise ValueError(f"Parameters {sorted(unused)} do not occur in: {sql}")
    return re.sub(r"(?<!:):(\w+)", lambda found: numbers[found[1]], sql)


def summary_select_columns(*, with_texts: bool) -> str:
    """Returns the column list of a SELECT from `chunks k`. Without `with_texts`, `text` is an empty string."""
    return ", ".join("'' AS text" if name == "text" and not with_texts else f"k.{name}" for name in SUMMARY_COLUMNS)


class Statements(SimpleNamespace):
    """The shared statements for one driver. `_SHARED` has their names, and the order of their arguments."""


def _build_insert(table: str, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})", names


REPLACE_VERSION: Final = """
        ON CONFLICT (root, conversation_id, since_seq, seq)
        DO UPDATE SET to_seq = excluded.to_seq, bodies = excluded.bodies, tokens_delta = excluded.tokens_delta"""
"""A turn without new messages, such as an answer that is asked for again, brings its versions at the same place."""
_CONVERSATION: Final = ", ".join(CONVERSATION_COLUMNS)
_CONVERSATION_BY_EXTERNAL_ID: Final = ", ".join(
    f"{'e' if name == 'external_id' else 'c'}.{name}" for name in CONVERSATION_COLUMNS
)
_LINK_REMAINS: Final = "FROM messages m WHERE m.root = chunks.root AND m.link = chunks.to_link"
_SHARED: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "select_conversation": (
        f"SELECT {_CONVERSATION} FROM conversations WHERE root = :root AND id = :id AND tenant = :tenant",
        ("root", "id", "tenant"),
    ),
    "select_any_conversation": (
        f"SELECT {_CONVERSATION} FROM conversations WHERE root = :root AND id = :id",
        ("root", "id"),
    ),
    "select_by_external_id": (
        f"""
        SELECT {_CONVERSATION_BY_EXTERNAL_ID}
        FROM external_ids e JOIN conversations c ON c.root = e.root AND c.id = e.conversation_id
        WHERE e.tenant = :tenant AND e.external_id = :external_id AND c.tenant = :tenant""",
        ("tenant", "external_id"),
    ),
    "select_model_facts": ("SELECT model, facts FROM model_facts", ()),
    "insert_conversation": _build_insert("conversations", CONVERSATION_COLUMNS),
    "insert_message": _build_insert("messages", MESSAGE_INSERT_COLUMNS),
    "insert_version": (
        _build_insert("client_versions", CLIENT_VERSION_INSERT_COLUMNS)[0] + REPLACE_VERSION,
        CLIENT_VERSION_INSERT_COLUMNS,
    ),
    "insert_anchor": (
        f"""
        INSERT INTO anchors ({", ".join(ANCHOR_COLUMNS)}, kept_at)
        VALUES ({", ".join(f":{name}" for name in ANCHOR_COLUMNS)}, :kept_at) ON CONFLICT DO NOTHING""",
        (*ANCHOR_COLUMNS, "kept_at"),
    ),
    "insert_external_id": _build_insert("external_ids", ("tenant", "external_id", "root", "conversation_id")),
    "update_head": (UPDATE_HEAD, UPDATE_HEAD_PARAMETERS),
    "advance_indexed_before": (
        """
        UPDATE conversations SET indexed_before = :end_seq
        WHERE root = :root AND id = :id AND tenant = :tenant
          AND indexed_before >= :start_seq AND indexed_before < :end_seq""",
        ("root", "id", "tenant", "start_seq", "end_seq"),
    ),
    "select_branches": (
        "SELECT id, lineage, marks FROM conversations WHERE root = :root AND lineage LIKE :naming",
        ("root", "naming"),
    ),
    "change_lineage": (
        "UPDATE conversations SET lineage = :lineage, marks = :marks WHERE root = :root AND id = :id",
        ("root", "id", "lineage", "marks"),
    ),
    "erase_conversation": ("DELETE FROM conversations WHERE root = :root AND id = :id", ("root", "id")),
    "erase_external_ids": ("DELETE FROM external_ids WHERE root = :root AND conversation_id = :id", ("root", "id")),
    # The keys of a conversation's leases begin with its id.
    "erase_leases": (
        # Without its lease, a summary that is being made of the conversation cannot be stored.
        "DELETE FROM leases WHERE root = :root AND (substr(key, 1, length(:id)) = :id"
        + "".join(f" OR key LIKE '{prefix}%'" for prefix in SUMMARY_LEASE_PREFIXES)
        + ")",
        ("root", "id"),
    ),
    "erase_summaries": (
        f"DELETE FROM chunks WHERE root = :root AND conversation_id = :id AND NOT EXISTS (SELECT 1 {_LINK_REMAINS})",
        ("root", "id"),
    ),
    # Runs after messages are handed over and `erase_summaries` has deleted the summaries that end at no message: the
    # subquery finds the new owner for all others.
    "hand_over_summaries": (
        f"""
        UPDATE chunks SET conversation_id = (SELECT min(m.conversation_id) {_LINK_REMAINS})
        WHERE root = :root AND conversation_id = :id""",
        ("root", "id"),
    ),
    "release_lease": (f"DELETE FROM leases WHERE {IS_LEASE}", LEASE_PARAMETERS),
}
"""For each statement the SQL and the order of its arguments."""


def build_shared_statements(placeholder: str) -> Statements:
    """Builds all shared statements, with their parameters in the form of a driver (`?1` or `$1`)."""
    return Statements(**{name: number_parameters(*shared, placeholder) for name, shared in _SHARED.items()})


@dataclass(frozen=True, slots=True)
class MatchSource:
    """The FROM clause of a match query: `w` (`depth`, 0 for the deepest, and `link`), messages `m`, conversations `c`.

    `join_template` has places for the conditions on `{message}` and `{conversation}`. `true_comparison` turns a stored
    boolean into a condition that an index serves.
    """

    join_template: str
    true_comparison: str = ""


_MATCH_COLUMNS: Final = ", ".join(
    [f"m.{name} AS m_{name}" for name in MESSAGE_COLUMNS] + [f"c.{name} AS c_{name}" for name in CONVERSATION_COLUMNS]
)
_IS_IN_NAMED_LOG: Final = "EXISTS (SELECT 1 FROM named n WHERE n.id = m.conversation_id AND m.seq <= n.upto_seq)"


def build_link_match_query(source: MatchSource, *, with_named: bool, with_unanswered: bool = False) -> str:
    """Builds the query for stored messages with one of a list of links, deepest first. Rows: depth, the columns of the
    message, the columns of the conversation whose rows hold it.

    Parameters: `:root`, `:tenant`, and those of the source.

    Args:
        source: joins links, messages and conversations in this order, whatever the database's statistics say. A join
            from the conversation's messages to the links would read all messages.
        with_named: counts also unanswered messages in the relation `named` (`id`, `upto_seq`).
        with_unanswered: counts all unanswered messages.
    """
    answered = f"m.answered{source.true_comparison}"
    counts = f" AND ({answered} OR {_IS_IN_NAMED_LOG})" if with_named else f" AND {answered}"
    joined = source.join_template.format(
        message=f"m.root = :root AND m.link = w.link{'' if with_unanswered else counts}",
        conversation="c.root = :root AND c.id = m.conversation_id AND c.tenant = :tenant",
    )
    return f"""
        SELECT w.depth, {_MATCH_COLUMNS}
        FROM {joined}
        ORDER BY w.depth, (m.seq = c.head_seq) DESC, c.updated_at DESC, m.seq DESC
        LIMIT {MAX_LINK_MATCHES}"""
