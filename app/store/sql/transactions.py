"""Writes of several steps, told once for SQLite and PostgreSQL.

A script is a generator: it yields a statement, is sent its rows, and goes on with them. Each database runs it in one
transaction with its own driver. What a turn does on its way is not written like this: there each step is one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from app.store.sql.rows import encode_time
from app.store.sql.statements import Statements, build_shared_statements, number_parameters

Result = TypeVar("Result")
Statement: TypeAlias = tuple[str, tuple[Any, ...]]
"""A statement and its arguments."""
Rows: TypeAlias = list[Any]
TransactionSteps: TypeAlias = Generator[Statement, Rows, Result]


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """How a database wants to be spoken to."""

    statements: Statements
    placeholder: str
    encode_time: Callable[[datetime], Any]
    """A time as it is stored."""
    row_lock_clause: str
    """Ends a SELECT whose rows nobody else may change before the transaction ends."""
    has_pairs_condition: str
    """Condition: the JSON object in `{column}` has all the pairs of the parameter `:pairs`, a JSON object."""

    def build_statement(self, text: str, /, **values: Any) -> Statement:
        """A statement with `:name` parameters, and their values."""
        return _number_parameters_cached(text, tuple(values), self.placeholder), tuple(values.values())


@cache
def _number_parameters_cached(text: str, names: tuple[str, ...], placeholder: str) -> str:
    return number_parameters(text, names, placeholder)


class SearchIndexCleanup(Protocol):
    """What a database does with its index of words when messages go."""

    def remove_message(self, *, tenant: str, root: str, conversation_id: str, seq: int) -> TransactionSteps[None]:
        """Forget the words of one message of a conversation's own."""

    def remove_conversation(
        self, *, tenant: str, root: str, conversation_id: str, kept_through: int, heir: str | None
    ) -> TransactionSteps[None]:
        """Forget those of its messages after `kept_through`; those before are the heir's now."""


SQLITE: Final = SqlDialect(
    statements=build_shared_statements("?"),
    placeholder="?",
    encode_time=encode_time,
    row_lock_clause="",
    has_pairs_condition="""NOT EXISTS (
        SELECT 1 FROM json_each(:pairs) q
        WHERE NOT EXISTS (SELECT 1 FROM json_each({column}) h WHERE h.key = q.key AND h.value = q.value))""",
)
# jsonb cannot hold NUL, of which a client's text may have one.
POSTGRES: Final = SqlDialect(
    statements=build_shared_statements("$"),
    placeholder="$",
    encode_time=lambda moment: moment,
    row_lock_clause=" FOR UPDATE",
    has_pairs_condition=r"replace({column}, '\u0000', '\ufffd')::jsonb @> replace(:pairs, '\u0000', '\ufffd')::jsonb",
)
