"""Many turns' appends as a handful of statements.

Each call into SQLite gives the interpreter's lock away and waits to have it back, which under load takes longer than
writing a row. What conversations append independently of each other is therefore written in rows of one statement.
Where anything is not as it should be the whole transaction is undone, and each append runs by itself: `sqlite_writes`.
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import chain, groupby
from typing import Any, Final

import msgspec

from app.store.contract import Append, HeadMoved
from app.store.sql.rows import CONVERSATION_COLUMNS, as_text, names_itself
from app.store.sql.statements import HEAD, MESSAGE_ROW
from app.store.sqlite.reads import SQL
from app.store.sqlite.threads import Job
from app.store.sqlite.writes import advanced_row, append, created_row, message_row, release, require

Row = tuple[Any, ...]

_SIZES: Final = (16, 8, 4, 2, 1)
"""How many rows a statement has: few texts, so that SQLite compiles each once."""


class Appending(msgspec.Struct, frozen=True):
    """A job that appends; `run_together` may do many at once."""

    write: Append
    now: datetime

    def __call__(self, connection: sqlite3.Connection) -> None:
        append(connection, self.write, self.now)


def run_together(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Any]:
    """Run jobs in their order inside a transaction; what each comes to.

    Raises:
        Exception: whatever one of them raised. The transaction is to be undone.
    """
    values: list[Any] = []
    for can_be_joined, neighbours in groupby(jobs, _can_be_joined):
        run = list(neighbours)
        appendings = [job for job in run if isinstance(job, Appending)] if can_be_joined else []
        if len(appendings) > 1 and _are_independent(appendings):
            _append_all(connection, appendings)
            values += [None] * len(run)
        else:
            values += [job(connection) for job in run]
    return values


def _can_be_joined(job: Job) -> bool:
    # A branch first looks at what it branches from, which an append beside it may be changing.
    # Versions are held against what was redacted meanwhile.
    return isinstance(job, Appending) and not (
        job.write.versions or (job.write.creates and job.write.conversation.lineage)
    )


def _are_independent(appendings: Sequence[Appending]) -> bool:
    return len({one.write.conversation.id for one in appendings}) == len(appendings)


def _append_all(connection: sqlite3.Connection, appendings: Sequence[Appending]) -> None:
    new: list[Row] = []
    advanced: list[Row] = []
    messages: list[Row] = []
    for one in appendings:
        write, now = one.write, one.now
        conversation, moment = write.conversation, as_text(now)
        if write.fence is not None:
            require(connection, write.fence, now)
        if write.creates:
            new.append(created_row(conversation, moment))
        else:
            advanced.append(advanced_row(write, moment))
        messages += [message_row(conversation.root, conversation.id, entry, moment) for entry in write.messages]
    _insert(connection, _insert_conversations, new)
    for rows, sql in _in_statements(advanced, _advance):
        if connection.execute(sql, rows).rowcount != len(rows) // len(advanced[0]):
            raise HeadMoved
    _insert(connection, _insert_messages, messages)
    for one in appendings:
        write = one.write
        if write.creates and names_itself(write.conversation):
            named = write.conversation
            connection.execute(SQL.insert_external_id, (named.tenant, named.external_id, named.root, named.id))
        if write.releases and write.fence is not None:
            release(connection, write.fence)


def _insert(connection: sqlite3.Connection, text: Callable[[int], str], rows: Sequence[Row]) -> None:
    for values, sql in _in_statements(rows, text):
        connection.execute(sql, values)


def _in_statements(rows: Sequence[Row], text: Callable[[int], str]) -> Iterator[tuple[Row, str]]:
    """Rows end to end, and the statement for so many of them."""
    start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            yield tuple(chain.from_iterable(rows[start : start + size])), text(size)
            start += size


def _values(size: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * size)}"


@cache
def _insert_conversations(size: int) -> str:
    return f"INSERT INTO conversations ({', '.join(CONVERSATION_COLUMNS)}) {_values(size, len(CONVERSATION_COLUMNS))}"


@cache
def _insert_messages(size: int) -> str:
    return f"INSERT INTO messages ({', '.join(MESSAGE_ROW)}) {_values(size, len(MESSAGE_ROW))}"


@cache
def _advance(size: int) -> str:
    if size == 1:
        return SQL.advance
    place = ("root", "id", "tenant", "head_seq", "head_tokens_total")
    found = " AND ".join(f"conversations.{name} = v.column{number}" for number, name in enumerate(place, start=1))
    changed = ", ".join(f"{name} = v.column{number}" for number, name in enumerate(HEAD, start=len(place) + 1))
    return f"UPDATE conversations SET {changed} FROM ({_values(size, len(place) + len(HEAD))}) v WHERE {found}"
