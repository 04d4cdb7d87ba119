"""The statements that SQLite and PostgreSQL share, as plain SQL with `:name` parameters, numbered for each driver.

Backends run the resulting text on the bare driver with a tuple of arguments, in the order that is named beside each
statement. `matches` joins against a list of links, which is an array on PostgreSQL and a VALUES list on SQLite; both
must be told the join order.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from app.store.contract import MAX_MATCHES
from app.store.sql.rows import ANCHOR_COLUMNS, CHUNK_COLUMNS, CONVERSATION_COLUMNS, MESSAGE_COLUMNS, VERSION_COLUMNS

MESSAGE_ROW: Final = ("root", "conversation_id", *MESSAGE_COLUMNS)
VERSION_ROW: Final = ("root", "conversation_id", *VERSION_COLUMNS)
CHUNK_ROW: Final = ("root", "tenant", "is_fold", *CHUNK_COLUMNS)
HEAD: Final = (
    "head_seq",
    "head_link",
    "head_skeleton",
    "head_tokens_total",
    "answered",
    "mode",
    "chunk_count",
    "state",
    "updated_at",
)
"""What an append replaces of its conversation."""


def numbered(sql: str, names: Sequence[str], mark: str) -> str:
    """Replace each `:name` by its number in `names`, marked as the driver wants it (`?1` or `$1`)."""
    numbers = {name: f"{mark}{number}" for number, name in enumerate(names, start=1)}
    unused = numbers.keys() - set(re.findall(r"(?<!:):(\w+)", sql))
    if unused:
        raise ValueError(f"Parameters {sorted(unused)} do not occur in: {sql}")
    return re.sub(r"(?<!:):(\w+)", lambda found: numbers[found[1]], sql)


def chunk_columns(*, texts: bool) -> str:
    """What a SELECT from `chunks k` names; empty texts instead of the real ones, unless they are wanted."""
    return ", ".join("'' AS text" if name == "text" and not texts else f"k.{name}" for name in CHUNK_COLUMNS)


@dataclass(frozen=True, slots=True)
class Statements:
    """SQL text for one driver; arguments in the order noted in `_SHARED`."""

    by_id: str
    by_id_alone: str
    by_external_id: str
    log_range: str
    facts: str
    insert_conversation: str
    insert_message: str
    insert_version: str
    insert_anchor: str
    versions: str
    insert_external_id: str
    advance: str
    family: str
    erase_messages: str
    hand_over_messages: str
    erase_versions: str
    hand_over_versions: str
    erase_anchors: str
    hand_over_anchors: str
    change_lineage: str
    erase_conversation: str
    erase_external_ids: str
    erase_leases: str
    erase_chunks: str
    hand_over_chunks: str
    release: str


def _insert(table: str, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})", names


_CONVERSATION: Final = ", ".join(CONVERSATION_COLUMNS)
_CONVERSATION_BY_EXTERNAL_ID: Final = ", ".join(
    f"{'e' if name == 'external_id' else 'c'}.{name}" for name in CONVERSATION_COLUMNS
)
_LINK_REMAINS: Final = "FROM messages m WHERE m.root = chunks.root AND m.link = chunks.to_link"
_SHARED: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "by_id": (
        f"SELECT {_CONVERSATION} FROM conversations WHERE root = :root AND id = :id AND tenant = :tenant",
        ("root", "id", "tenant"),
    ),
    "by_id_alone": (f"SELECT {_CONVERSATION} FROM conversations WHERE root = :root AND id = :id", ("root", "id")),
    "by_external_id": (
        f"""
        SELECT {_CONVERSATION_BY_EXTERNAL_ID}
        FROM external_ids e JOIN conversations c ON c.root = e.root AND c.id = e.conversation_id
        WHERE e.tenant = :tenant AND e.external_id = :external_id AND c.tenant = :tenant""",
        ("tenant", "external_id"),
    ),
    "log_range": (
        f"""
        SELECT {", ".join(MESSAGE_COLUMNS)} FROM messages
        WHERE root = :root AND conversation_id = :id AND seq >= :from_seq AND seq < :to_seq ORDER BY seq""",
        ("root", "id", "from_seq", "to_seq"),
    ),
    "facts": ("SELECT model, facts FROM model_facts", ()),
    "insert_conversation": _insert("conversations", CONVERSATION_COLUMNS),
    "insert_message": _insert("messages", MESSAGE_ROW),
    "insert_version": _insert("client_versions", VERSION_ROW),
    "insert_anchor": (
        f"""
        INSERT INTO anchors ({", ".join(ANCHOR_COLUMNS)}, kept_at)
        VALUES ({", ".join(f":{name}" for name in ANCHOR_COLUMNS)}, :kept_at) ON CONFLICT DO NOTHING""",
        (*ANCHOR_COLUMNS, "kept_at"),
    ),
    "versions": (
        f"""
        SELECT {", ".join(VERSION_COLUMNS)} FROM client_versions
        WHERE root = :root AND conversation_id = :id AND since_seq <= :until_seq ORDER BY since_seq, seq""",
        ("root", "id", "until_seq"),
    ),
    "insert_external_id": _insert("external_ids", ("tenant", "external_id", "root", "conversation_id")),
    "advance": (
        f"""
        UPDATE conversations SET {", ".join(f"{name} = :{name}" for name in HEAD)}
        WHERE root = :root AND id = :id AND tenant = :tenant
          AND head_seq = :after_seq AND head_tokens_total = :total_before""",
        ("root", "id", "tenant", "after_seq", "total_before", *HEAD),
    ),
    "family": (
        "SELECT id, lineage FROM conversations WHERE root = :root AND lineage LIKE :naming",
        ("root", "naming"),
    ),
    "erase_messages": (
        "DELETE FROM messages WHERE root = :root AND conversation_id = :id AND seq > :kept_through",
        ("root", "id", "kept_through"),
    ),
    "hand_over_messages": (
        "UPDATE messages SET conversation_id = :heir WHERE root = :root AND conversation_id = :id",
        ("root", "id", "heir"),
    ),
    "erase_versions": (
        "DELETE FROM client_versions WHERE root = :root AND conversation_id = :id AND since_seq > :kept_through",
        ("root", "id", "kept_through"),
    ),
    "hand_over_versions": (
        "UPDATE client_versions SET conversation_id = :heir WHERE root = :root AND conversation_id = :id",
        ("root", "id", "heir"),
    ),
    "erase_anchors": (
        "DELETE FROM anchors WHERE root = :root AND conversation_id = :id AND (seq < 0 OR seq > :kept_through)",
        ("root", "id", "kept_through"),
    ),
    "hand_over_anchors": (
        "UPDATE anchors SET conversation_id = :heir WHERE root = :root AND conversation_id = :id",
        ("root", "id", "heir"),
    ),
    "change_lineage": (
        "UPDATE conversations SET lineage = :lineage WHERE root = :root AND id = :id",
        ("root", "id", "lineage"),
    ),
    "erase_conversation": ("DELETE FROM conversations WHERE root = :root AND id = :id", ("root", "id")),
    "erase_external_ids": ("DELETE FROM external_ids WHERE root = :root AND conversation_id = :id", ("root", "id")),
    "erase_leases": (
        "DELETE FROM leases WHERE root = :root AND substr(key, 1, length(:id)) = :id",
        ("root", "id"),
    ),
    "erase_chunks": (
        f"DELETE FROM chunks WHERE root = :root AND conversation_id = :id AND NOT EXISTS (SELECT 1 {_LINK_REMAINS})",
        ("root", "id"),
    ),
    "hand_over_chunks": (
        f"""
        UPDATE chunks SET conversation_id = (SELECT min(m.conversation_id) {_LINK_REMAINS})
        WHERE root = :root AND conversation_id = :id""",
        ("root", "id"),
    ),
    "release": (
        """
        DELETE FROM leases
        WHERE root = :lease_root AND key = :lease_key AND holder = :holder AND token = :token""",
        ("lease_root", "lease_key", "holder", "token"),
    ),
}
"""SQL, and the order of its arguments."""


def shared_statements(mark: str) -> Statements:
    """All shared statements, their parameters marked as a driver wants them (`?1` or `$1`)."""
    return Statements(**{each.name: numbered(*_SHARED[each.name], mark) for each in fields(Statements)})


@dataclass(frozen=True, slots=True)
class MatchSource:
    """What `matches` selects from: `w` (`depth`, 0 being the deepest, and `link`), messages `m`, conversations `c`.

    `joined` has places for the conditions on `{message}` and `{conversation}`; `yes` makes a stored boolean a
    condition that an index serves.
    """

    joined: str
    yes: str = ""


_MATCH_COLUMNS: Final = ", ".join(
    [f"m.{name} AS m_{name}" for name in MESSAGE_COLUMNS] + [f"c.{name} AS c_{name}" for name in CONVERSATION_COLUMNS]
)
_OF_THE_NAMED: Final = "EXISTS (SELECT 1 FROM named n WHERE n.id = m.conversation_id AND m.seq <= n.upto_seq)"


def matches(source: MatchSource, *, by_skeleton: bool, within: bool) -> str:
    """Stored messages on a list of links, deepest first: depth, the message, the conversation that keeps it.

    Args:
        source: how the dialect joins links, messages and conversations, in this order whatever its statistics say.
            Looking for the links in the conversation's messages instead would read all of them.
        within: unanswered messages of the relation `named` (`id`, `upto_seq`) count too.

    Parameters: `:root`, `:tenant`, and those of the source.
    """
    column = "skeleton" if by_skeleton else "link"
    in_skeleton = f" AND m.in_skeleton{source.yes}" if by_skeleton else ""
    answered = f"m.answered{source.yes}"
    counts = f"({answered} OR {_OF_THE_NAMED})" if within else answered
    joined = source.joined.format(
        message=f"m.root = :root AND m.{column} = w.link{in_skeleton} AND {counts}",
        conversation="c.root = :root AND c.id = m.conversation_id AND c.tenant = :tenant",
    )
    return f"""
        SELECT w.depth, {_MATCH_COLUMNS}
        FROM {joined}
        ORDER BY w.depth, (m.seq = c.head_seq) DESC, c.updated_at DESC, m.seq DESC
        LIMIT {MAX_MATCHES}"""
