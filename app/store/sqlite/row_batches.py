"""Writes many rows with few statements. Each call into SQLite releases the interpreter's lock and waits to get it back,
which under load takes longer than writing a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

Row = tuple[Any, ...]

_ROWS_PER_STATEMENT: Final = (16, 8, 4, 2, 1)
"""Rows of a statement. Few different numbers, so that SQLite compiles each text once."""


def insert_rows(connection: sqlite3.Connection, build_sql: Callable[[int], str], rows: Sequence[Row]) -> None:
    """Inserts rows. `build_sql(n)` returns the statement for n rows."""
    for values, sql in split_into_statements(rows, build_sql):
        connection.execute(sql, values)


def split_into_statements(rows: Sequence[Row], build_sql: Callable[[int], str]) -> Iterator[tuple[Row, str]]:
    """Yields the values of rows, joined end to end, with the statement for that many rows."""
    start = 0
    for size in _ROWS_PER_STATEMENT:
        while len(rows) - start >= size:
            yield tuple(chain.from_iterable(rows[start : start + size])), build_sql(size)
            start += size


def build_values_clause(size: int, columns: int) -> str:
    """Returns a VALUES clause of `size` rows."""
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * size)}"
