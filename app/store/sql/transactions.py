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

from app.store.sql.rows import as_text
from app.store.sql.statements import Statements, numbered, shared_statements

Result = TypeVar("Result")
Query: TypeAlias = tuple[str, tuple[Any, ...]]
"""A statement and its arguments."""
Rows: TypeAlias = list[Any]
Script: TypeAlias = Generator[Query, Rows, Result]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database wants to be spoken to."""

    sql: Statements
    mark: str
    moment: Callable[[datetime], Any]
    """A time as it is stored."""
    locking: str
    """Ends a SELECT whose rows nobody else may change before the transaction ends."""
    has_pairs: str
    """Condition: the JSON object in `{column}` has all the pairs of the parameter `:pairs`, a JSON object."""

    def say(self, text: str, /, **values: Any) -> Query:
        """A statement with `:name` parameters, and their values."""
        return _numbered(text, tuple(values), self.mark), tuple(values.values())


@cache
def _numbered(text: str, names: tuple[str, ...], mark: str) -> str:
    return numbered(text, names, mark)


class Words(Protocol):
    """What a database does with its index of words when messages go."""

    def forget(self, *, tenant: str, root: str, conversation_id: str, seq: int) -> Script[None]:
        """Forget the words of one message of a conversation's own."""

    def erase(
        self, *, tenant: str, root: str, conversation_id: str, kept_through: int, heir: str | None
    ) -> Script[None]:
        """Forget those of its messages after `kept_through`; those before are the heir's now."""


SQLITE: Final = Dialect(
    sql=shared_statements("?"),
    mark="?",
    moment=as_text,
    locking="",
    has_pairs="""NOT EXISTS (
        SELECT 1 FROM json_each(:pairs) q
        WHERE NOT EXISTS (SELECT 1 FROM json_each({column}) h WHERE h.key = q.key AND h.value = q.value))""",
)
# jsonb cannot hold NUL, of which a client's text may have one.
POSTGRES: Final = Dialect(
    sql=shared_statements("$"),
    mark="$",
    moment=lambda moment: moment,
    locking=" FOR UPDATE",
    has_pairs=r"replace({column}, '\u0000', '\ufffd')::jsonb @> replace(:pairs, '\u0000', '\ufffd')::jsonb",
)
