"""The statements that SQLite and PostgreSQL share: written once in SQLAlchemy Core, compiled once per dialect.

Backends run the resulting SQL text on the bare driver with a tuple of arguments, in the order that is named beside
each statement. SQLAlchemy itself is never called while a request is served.

`matches` is written by hand: it joins against a list of links, which is an array on PostgreSQL and a VALUES list on
SQLite, and both must be told the join order.
"""

# ruff: noqa: S608 - built from our own names when the module is loaded; values are always parameters

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Table, Text, bindparam, delete, exists, func, insert, literal_column, select, update
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import ClauseElement

from app.store.base import MAX_MATCHES
from app.store.rows import CHUNK_COLUMNS, CONVERSATION_COLUMNS, MESSAGE_COLUMNS
from app.store.tables import chunks, conversations, external_ids, leases, messages, model_facts

MESSAGE_ROW: Final = ("root", "conversation_id", *MESSAGE_COLUMNS)
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


def _columns(table: Table, names: Sequence[str]) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in names]


def _here(table: Table) -> list[ColumnElement[bool]]:
    """The rows of one conversation."""
    return [table.c.root == bindparam("root"), table.c.conversation_id == bindparam("id")]


_this_conversation = [conversations.c.root == bindparam("root"), conversations.c.id == bindparam("id")]
_this_lease = [
    leases.c.root == bindparam("lease_root"),
    leases.c.key == bindparam("lease_key"),
    leases.c.holder == bindparam("holder"),
    leases.c.token == bindparam("token"),
]
_link_remains = messages.c.root == chunks.c.root, messages.c.link == chunks.c.to_link


@dataclass(frozen=True, slots=True)
class Statements:
    """SQL text for one driver; arguments in the order noted in `compiled`."""

    by_id: str
    by_id_alone: str
    by_external_id: str
    log_range: str
    facts: str
    insert_conversation: str
    insert_message: str
    insert_external_id: str
    advance: str
    family: str
    erase_messages: str
    hand_over_messages: str
    change_lineage: str
    erase_conversation: str
    erase_external_ids: str
    erase_leases: str
    erase_chunks: str
    hand_over_chunks: str
    release: str


def compiled(dialect: Dialect, mark: str) -> Statements:
    """All shared statements in one dialect."""

    def sql(statement: ClauseElement, *names: str) -> str:
        return numbered(str(statement.compile(dialect=dialect)), names, mark)

    named = [c if c.name != "external_id" else external_ids.c.external_id for c in conversations.c]
    by_name = {column.name: column for column in named}
    id_length = func.length(bindparam("id", type_=Text))
    key_start = func.substr(leases.c.key, literal_column("1"), id_length)
    return Statements(
        by_id=sql(
            select(*_columns(conversations, CONVERSATION_COLUMNS)).where(
                *_this_conversation, conversations.c.tenant == bindparam("tenant")
            ),
            "root",
            "id",
            "tenant",
        ),
        by_id_alone=sql(
            select(*_columns(conversations, CONVERSATION_COLUMNS)).where(*_this_conversation), "root", "id"
        ),
        by_external_id=sql(
            select(*[by_name[name] for name in CONVERSATION_COLUMNS])
            .join_from(
                external_ids,
                conversations,
                (conversations.c.root == external_ids.c.root) & (conversations.c.id == external_ids.c.conversation_id),
            )
            .where(
                external_ids.c.tenant == bindparam("tenant"),
                external_ids.c.external_id == bindparam("external_id"),
                conversations.c.tenant == bindparam("tenant"),
            ),
            "tenant",
            "external_id",
        ),
        log_range=sql(
            select(*_columns(messages, MESSAGE_COLUMNS))
            .where(
                *_here(messages),
                messages.c.seq >= bindparam("from_seq"),
                messages.c.seq < bindparam("to_seq"),
            )
            .order_by(messages.c.seq),
            "root",
            "id",
            "from_seq",
            "to_seq",
        ),
        facts=sql(select(model_facts.c.model, model_facts.c.facts)),
        insert_conversation=sql(_insert(conversations, CONVERSATION_COLUMNS), *CONVERSATION_COLUMNS),
        insert_message=sql(_insert(messages, MESSAGE_ROW), *MESSAGE_ROW),
        insert_external_id=sql(
            _insert(external_ids, ("tenant", "external_id", "root", "conversation_id")),
            "tenant",
            "external_id",
            "root",
            "conversation_id",
        ),
        advance=sql(_advance(HEAD), *_ADVANCED, *HEAD),
        family=sql(
            select(conversations.c.id, conversations.c.lineage).where(
                conversations.c.root == bindparam("root"), conversations.c.lineage.like(bindparam("naming"))
            ),
            "root",
            "naming",
        ),
        erase_messages=sql(
            delete(messages).where(*_here(messages), messages.c.seq > bindparam("kept_through")),
            "root",
            "id",
            "kept_through",
        ),
        hand_over_messages=sql(
            update(messages).where(*_here(messages)).values(conversation_id=bindparam("heir")), "root", "id", "heir"
        ),
        change_lineage=sql(
            update(conversations).where(*_this_conversation).values(lineage=bindparam("lineage")),
            "root",
            "id",
            "lineage",
        ),
        erase_conversation=sql(delete(conversations).where(*_this_conversation), "root", "id"),
        erase_external_ids=sql(delete(external_ids).where(*_here(external_ids)), "root", "id"),
        erase_leases=sql(
            delete(leases).where(leases.c.root == bindparam("root"), key_start == bindparam("id", type_=Text)),
            "root",
            "id",
        ),
        erase_chunks=sql(
            delete(chunks).where(*_here(chunks), ~exists(select(messages.c.seq).where(*_link_remains))), "root", "id"
        ),
        hand_over_chunks=sql(
            update(chunks)
            .where(*_here(chunks))
            .values(
                conversation_id=select(func.min(messages.c.conversation_id)).where(*_link_remains).scalar_subquery()
            ),
            "root",
            "id",
        ),
        release=sql(delete(leases).where(*_this_lease), "lease_root", "lease_key", "holder", "token"),
    )


_ADVANCED: Final = ("root", "id", "of_tenant", "after_seq", "total_before")


def _advance(head: Sequence[str]) -> ClauseElement:
    return (
        update(conversations)
        .where(
            *_this_conversation,
            conversations.c.tenant == bindparam("of_tenant"),
            conversations.c.head_seq == bindparam("after_seq"),
            conversations.c.head_tokens_total == bindparam("total_before"),
        )
        .values({name: bindparam(name) for name in head})
    )


def _insert(table: Table, names: Sequence[str]) -> ClauseElement:
    return insert(table).values({name: bindparam(name) for name in names})


def sqlite_statements() -> Statements:
    return compiled(SQLiteDialect(paramstyle="named"), "?")


def postgres_statements() -> Statements:
    return compiled(PGDialect(paramstyle="named"), "$")  # type: ignore[no-untyped-call]


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
