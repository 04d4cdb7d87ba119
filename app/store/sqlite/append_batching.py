"""Writes the appends of many turns in a few statements.

Each call into SQLite releases the interpreter's lock and waits to get it back, which under load takes longer than
writing a row. So appends of different conversations are written as rows of one statement. If any of them fails, the
whole transaction is rolled back, and each append runs by itself (`writes.write_log_append`).
"""

# ruff: noqa: S608 - built from our own names; values are always parameters

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import msgspec

from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.sql.rows import CONVERSATION_COLUMNS, claims_external_id, encode_time, head_update_values
from app.store.sql.statements import HEAD_COLUMNS, MESSAGE_INSERT_COLUMNS
from app.store.sqlite.reads import SQL
from app.store.sqlite.row_batches import Row, build_values_clause, insert_rows, split_into_statements
from app.store.sqlite.threads import Job
from app.store.sqlite.writes import (
    message_rows,
    new_conversation_row,
    release_lease,
    require_lease,
    write_answer_keys,
    write_log_append,
)


class AppendJob(msgspec.Struct, frozen=True):
    """A job that appends one write. `run_jobs_combining_appends` can combine several."""

    write: LogAppend
    now: datetime

    def __call__(self, connection: sqlite3.Connection) -> None:
        write_log_append(connection, self.write, self.now)


def run_jobs_combining_appends(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Any]:
    """Runs jobs in their order inside a transaction, and returns their results. Neighbouring appends are combined.

    Raises:
        Exception: what a job raised. The caller must roll the transaction back.
    """
    # Usually a batch is one job.
    if len(jobs) == 1:
        return [jobs[0](connection)]
    values: list[Any] = []
    for can_be_joined, neighbours in groupby(jobs, _is_batchable_append):
        run = list(neighbours)
        appendings = [job for job in run if isinstance(job, AppendJob)] if can_be_joined else []
        if len(appendings) > 1 and _have_distinct_conversations(appendings):
            _write_append_batch(connection, appendings)
            values += [None] * len(run)
        else:
            values += [job(connection) for job in run]
    return values


def _is_batchable_append(job: Job) -> bool:
    # A branch first checks its ancestors, which another append of the batch may change. Client versions are checked
    # against redactions. Both need statements of their own.
    return isinstance(job, AppendJob) and not (
        job.write.versions or (job.write.creates_conversation and job.write.conversation.lineage)
    )


def _have_distinct_conversations(jobs: Sequence[AppendJob]) -> bool:
    return len({one.write.conversation.id for one in jobs}) == len(jobs)


def _write_append_batch(connection: sqlite3.Connection, jobs: Sequence[AppendJob]) -> None:
    new: list[Row] = []
    advanced: list[Row] = []
    messages: list[Row] = []
    for one in jobs:
        write, now = one.write, one.now
        conversation, moment = write.conversation, encode_time(now)
        if write.fence is not None:
            require_lease(connection, write.fence, now)
        if write.creates_conversation:
            new.append(new_conversation_row(conversation, moment))
        else:
            advanced.append(head_update_values(write, moment))
        messages += message_rows(write, moment)
    insert_rows(connection, _build_conversations_insert, new)
    for rows, sql in split_into_statements(advanced, _build_heads_update):
        # Fewer rows: at least one log does not end where its write expects. Which one, the second run finds out.
        if connection.execute(sql, rows).rowcount != len(rows) // len(advanced[0]):
            raise WriteConflict
    insert_rows(connection, _build_messages_insert, messages)
    write_answer_keys(connection, [one.write for one in jobs], encode_time(jobs[0].now))
    for one in jobs:
        write = one.write
        if write.creates_conversation and claims_external_id(write.conversation):
            named = write.conversation
            connection.execute(SQL.insert_external_id, (named.tenant, named.external_id, named.root, named.id))
        if write.releases_lease and write.fence is not None:
            release_lease(connection, write.fence)


@cache
def _build_conversations_insert(size: int) -> str:
    values = build_values_clause(size, len(CONVERSATION_COLUMNS))
    return f"INSERT INTO conversations ({', '.join(CONVERSATION_COLUMNS)}) {values}"


@cache
def _build_messages_insert(size: int) -> str:
    values = build_values_clause(size, len(MESSAGE_INSERT_COLUMNS))
    return f"INSERT INTO messages ({', '.join(MESSAGE_INSERT_COLUMNS)}) {values}"


@cache
def _build_heads_update(size: int) -> str:
    if size == 1:
        return SQL.update_head
    key_columns = ("root", "id", "tenant", "head_seq", "head_tokens_total")
    found = " AND ".join(f"conversations.{name} = v.column{number}" for number, name in enumerate(key_columns, start=1))
    changed = ", ".join(
        f"{name} = v.column{number}" for number, name in enumerate(HEAD_COLUMNS, start=len(key_columns) + 1)
    )
    values = build_values_clause(size, len(key_columns) + len(HEAD_COLUMNS))
    return f"UPDATE conversations SET {changed} FROM ({values}) v WHERE {found}"
