"""Appends that are written together end as each would by itself."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from app.store.contract.conversations import LogAppend
from app.store.sqlite.jobs import write_log_append
from app.store.sqlite.threads import SqliteOptions, open_sqlite_connection, run_batch_in_transaction
from tests.store.example_logs import NOON, beginnings, conversation_of, following, log_of


async def test_a_question_and_its_answer_in_one_batch_keep_their_order(sqlite_file: Path) -> None:
    connection = open_sqlite_connection(sqlite_file, SqliteOptions())
    asked = beginnings(3)
    jobs = [
        partial(write_log_append, write=write, now=NOON)
        for write in (asked[0], following(asked[0]), asked[1], asked[2])
    ]
    assert run_batch_in_transaction(connection, jobs) == [(None, None)] * 4
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (4,)
    connection.close()


def test_a_branch_finds_what_was_appended_before_it_in_one_batch(sqlite_file: Path) -> None:
    connection = open_sqlite_connection(sqlite_file, SqliteOptions())
    (asked,) = beginnings(1)
    answered = following(asked)
    trunk, tenant = asked.conversation, asked.conversation.tenant
    own = log_of(tenant, ["user but"], after=answered.messages[-1])
    log = [*asked.messages, *answered.messages, *own]
    branch = replace(conversation_of(tenant, log), id=trunk.id[:-4] + "beef", lineage=((trunk.id, 1),))
    writes = [asked, answered, LogAppend(branch, 1, own, creates_conversation=True)]
    outcomes = run_batch_in_transaction(
        connection, [partial(write_log_append, write=write, now=NOON) for write in writes]
    )
    connection.close()
    assert outcomes == [(None, None)] * 3


async def test_another_process_that_holds_the_file_fails_all_of_a_batch(sqlite_file: Path) -> None:
    connection = open_sqlite_connection(sqlite_file, SqliteOptions(busy_timeout_seconds=0.01))
    other = sqlite3.connect(sqlite_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    jobs = [partial(write_log_append, write=write, now=NOON) for write in beginnings(3)]
    outcomes = run_batch_in_transaction(connection, jobs)
    assert [type(error) for _, error in outcomes] == [sqlite3.OperationalError] * 3
    other.close()
    connection.close()
