"""Defines what transactions of several steps need on SQLite and PostgreSQL: the differences of the dialects, and the
types of the steps.

A transaction is written once, as a generator that yields statements and receives their rows. Each backend runs the
generator with its own driver. A turn is written by a single statement, without such a generator.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from app.conversation.identity import extract_family_root
from app.store.sql.rows import encode_time
from app.store.sql.statements import SELECT_BY_EXTERNAL_ID, SELECT_CONVERSATION, number_parameters

Result = TypeVar("Result")
Statement: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its arguments."""
Rows: TypeAlias = list[Any]
TransactionSteps: TypeAlias = Generator[Statement, Rows, Result]


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The differences between the SQL of SQLite and of PostgreSQL."""

    placeholder: str
    encode_time: Callable[[datetime], Any]
    """Converts a time to the form that the database stores."""
    row_lock_clause: str
    """Ends a SELECT that locks its rows until the end of the transaction. Empty on SQLite, which has one writer."""
    has_pairs_condition: str
    """A condition: the JSON object in `{column}` has all the pairs of the parameter `:pairs`, a JSON object."""
    position_function: str
    """A function of a text and a piece of it: where the piece begins, from 1; 0 if it is nowhere."""
    last_shared_seq: str
    """The seq of the last message that a conversation shares with its ancestors; NULL without ancestors."""

    def build_statement(self, text: str, /, **values: Any) -> Statement:
        """Numbers the `:name` parameters of a text, and returns it with their values."""
        return number_parameters(text, tuple(values), self.placeholder), tuple(values.values())

    def build_conversation_query(self, tenant: str, conversation_id: str) -> Statement:
        """Builds the query for a conversation: by the gateway's id if the id has a root, else by the client's own id.
        Rows have `CONVERSATION_COLUMNS`.
        """
        root = extract_family_root(conversation_id)
        if root is None:
            return self.build_statement(SELECT_BY_EXTERNAL_ID, tenant=tenant, external_id=conversation_id)
        return self.build_statement(SELECT_CONVERSATION, root=root, id=conversation_id, tenant=tenant)

    def lock_conversation(self, columns: str, *, root: str, id: str, tenant: str) -> TransactionSteps[Rows]:
        """Locks the row of a conversation, and reads these columns of it; no row if it is gone."""
        text = f"SELECT {columns} FROM conversations WHERE root = :root AND id = :id AND tenant = :tenant"
        return (yield self.build_statement(f"{text}{self.row_lock_clause}", root=root, id=id, tenant=tenant))


SQLITE: Final = SqlDialect(
    placeholder="?",
    encode_time=encode_time,
    row_lock_clause="",
    has_pairs_condition="""NOT EXISTS (
        SELECT 1 FROM json_each(:pairs) q
        WHERE NOT EXISTS (SELECT 1 FROM json_each({column}) h WHERE h.key = q.key AND h.value = q.value))""",
    position_function="instr",
    last_shared_seq="json_extract(lineage, '$[#-1][1]')",
)
# jsonb cannot hold NUL, which a client's text may contain: has_pairs_condition replaces it on both sides.
POSTGRES: Final = SqlDialect(
    placeholder="$",
    encode_time=lambda moment: moment,
    row_lock_clause=" FOR UPDATE",
    has_pairs_condition=r"replace({column}, '\u0000', '\ufffd')::jsonb @> replace(:pairs, '\u0000', '\ufffd')::jsonb",
    position_function="strpos",
    last_shared_seq="(lineage::json -> -1 ->> 1)::int",
)
