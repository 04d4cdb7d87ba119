"""Appends that are written together end as each would by itself."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.store.base import Append, HeadMoved, LeaseLost
from app.store.sqlite import SqliteStore
from app.store.sqlite_appends import Appending, run_together
from app.store.sqlite_lanes import SqliteOptions, commit_together, open_file
from tests.store.logs import NOON, Clock, begin, bodies, conversation_of, fresh_tenant, grown, lease_on, log_of


@pytest.fixture
def file(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture
async def store(file: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(file, clock=clock)
    await opened.open()
    yield opened
    await opened.close()


def beginnings(count: int) -> list[Append]:
    logs = [(fresh_tenant(), f"user {number}") for number in range(count)]
    written = [(tenant, log_of(tenant, [line])) for tenant, line in logs]
    return [Append(conversation_of(tenant, log), -1, log, creates=True) for tenant, log in written]


def following(write: Append) -> Append:
    tenant = write.conversation.tenant
    answer = log_of(tenant, [f"assistant of {tenant}"], after=write.messages[-1])
    return Append(grown(write.conversation, answer), write.conversation.head_seq, answer)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 37])
async def test_each_conversation_has_what_was_appended_to_it(store: SqliteStore, count: int) -> None:
    asked = beginnings(count)
    await asyncio.gather(*(store.append(write) for write in asked))
    answered = [following(write) for write in asked]
    more = beginnings(count)
    await asyncio.gather(*(store.append(write) for pair in zip(answered, more, strict=True) for write in pair))
    for question, answer in zip(asked, answered, strict=True):
        found = await store.get(tenant=question.conversation.tenant, conversation_id=question.conversation.id)
        assert found == replace(answer.conversation, created_at=NOON, updated_at=NOON)
        log = await store.read(found, 0, 9)
        assert [entry.message for entry in log] == [entry.message for entry in (*question.messages, *answer.messages)]


def test_a_batch_of_appends_takes_a_handful_of_statements(file: Path) -> None:
    connection = open_file(file, SqliteOptions())
    asked = beginnings(16)
    commit_together(connection, [Appending(write, NOON) for write in asked], run_together)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    mixed = [following(write) for write in asked] + beginnings(16)
    outcomes = commit_together(connection, [Appending(write, NOON) for write in mixed], run_together)
    connection.close()
    assert outcomes == [(None, None)] * 32
    assert len(statements) <= 6


async def test_one_that_fails_takes_no_other_with_it(store: SqliteStore, clock: Clock) -> None:
    asked = beginnings(9)
    await asyncio.gather(*(store.append(write) for write in asked))
    lost = await lease_on(store, asked[2].conversation.root, seconds=0)
    writes = [following(write) for write in asked]
    writes[1] = replace(writes[1], after_seq=7)
    writes[2] = replace(writes[2], fence=lost)
    writes[3] = asked[3]
    outcomes = await asyncio.gather(*(store.append(write) for write in writes), return_exceptions=True)
    failed = [None, HeadMoved, LeaseLost, HeadMoved]
    assert [outcome and type(outcome) for outcome in outcomes] == failed + [None] * 5
    for place, write in enumerate(asked):
        found = await store.get(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
        assert found is not None
        assert found.head_seq == (0 if place in (1, 2, 3) else 1)


async def test_a_total_that_a_redaction_moved_is_followed_among_others_too(store: SqliteStore) -> None:
    asked = beginnings(5)
    await asyncio.gather(*(store.append(write) for write in asked))
    (entry,) = asked[0].messages
    await store.redact(asked[0].conversation, [replace(entry, tokens=entry.tokens + 5)])
    await asyncio.gather(*(store.append(following(write)) for write in asked))
    write = following(asked[0])
    found = await store.get(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
    assert found is not None
    assert found.head_tokens_total == write.conversation.head_tokens_total + 5


async def test_a_question_and_its_answer_in_one_batch_keep_their_order(file: Path) -> None:
    connection = open_file(file, SqliteOptions())
    asked = beginnings(3)
    jobs = [Appending(write, NOON) for write in (asked[0], following(asked[0]), asked[1], asked[2])]
    assert commit_together(connection, jobs, run_together) == [(None, None)] * 4
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (4,)
    connection.close()


async def test_a_branch_sees_what_was_appended_before_it(store: SqliteStore) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, ["user hi"])
    answer = following(Append(trunk, -1, log))
    own = log_of(tenant, ["user but"], after=answer.messages[-1])
    branch = replace(
        conversation_of(tenant, [*log, *answer.messages, *own]), id=trunk.id[:-4] + "beef", lineage=((trunk.id, 1),)
    )
    await asyncio.gather(store.append(answer), store.append(Append(branch, 1, own, creates=True)))
    assert bodies(await store.read(branch, 0, 9))[-1] == "but"


async def test_another_process_that_holds_the_file_fails_all_of_a_batch(file: Path) -> None:
    connection = open_file(file, SqliteOptions(busy_timeout_seconds=0.01))
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    jobs = [Appending(write, NOON) for write in beginnings(3)]
    outcomes = commit_together(connection, jobs, run_together)
    assert [type(error) for _, error in outcomes] == [sqlite3.OperationalError] * 3
    other.close()
    connection.close()
