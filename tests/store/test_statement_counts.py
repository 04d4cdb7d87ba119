"""The work of a turn does not grow with the conversation: the same statements and rows at 10 and 10,000 messages."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from app.conversation.conversation_types import Conversation, LogMessage
from app.store.contract.store import Store
from app.store.postgres.backend import PostgresStore
from app.store.sqlite.backend import SqliteStore
from app.store.store_factory import create_store
from tests.store.example_logs import Clock, begin, fresh_tenant, go_on, links, log_of

Work = tuple[int, int]
"""Statements, rows."""
Counter = Callable[[], Work]


@asynccontextmanager
async def counting(store: Store) -> AsyncIterator[Counter]:
    """How many statements ran, and how many rows or steps they took, since it was last asked."""
    if isinstance(store, SqliteStore):
        statements: list[str] = []
        steps = [0]

        def watch(connection: sqlite3.Connection) -> None:
            def step() -> None:
                steps[0] += 1

            connection.set_trace_callback(statements.append)
            connection.set_progress_handler(step, 100)

        for lane in (store._writer_thread, store._lookup_thread, store._range_thread):
            await lane.submit(watch)

        def sqlite_work() -> Work:
            work = len(statements), steps[0]
            statements.clear()
            steps[0] = 0
            return work

        yield sqlite_work
        return
    assert isinstance(store, PostgresStore)
    seen: list[str] = []
    pool = store._connections._require_open_pool()
    connection = await pool.acquire()
    connection.add_query_logger(lambda record: seen.append(record.query))
    await pool.release(connection)

    def postgres_work() -> Work:
        work = len(seen), 0
        seen.clear()
        return work

    yield postgres_work


async def turn(store: Store, conversation: Conversation, log: list[LogMessage]) -> None:
    """A client resends everything and one new question; it is stored, then the answer."""
    question = log_of(conversation.tenant, ["user new"], after=log[-1])
    resent = [*log, *question]
    (match,) = await store.find_link_matches(tenant=conversation.tenant, root=conversation.root, links=links(resent))
    asked, whole = await go_on(store, match.conversation, log, ["user new"])
    await go_on(store, asked, whole, ["assistant answer"])


async def work_of(store: Store, counter: Counter, messages: int, step: Callable[..., Awaitable[None]]) -> Work:
    tenant = fresh_tenant()
    lines = [f"{role} {number}" for number in range(messages // 2) for role in ("user", "assistant")]
    conversation, log = await begin(store, tenant, lines)
    counter()
    await step(store, conversation, log)
    return counter()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_a_turn_costs_the_same_however_long_the_log(url: str, clock: Clock) -> None:
    store = create_store(url, clock=clock, pool_size=1)
    await store.open()
    async with counting(store) as counter:
        short = await work_of(store, counter, 10, turn)
        long = await work_of(store, counter, 10_000, turn)
    await store.close()
    assert short[0] == long[0]
    assert long[1] <= short[1] + 2
    if isinstance(store, PostgresStore):
        assert long[0] == 3


async def _resend_something_else(store: Store, conversation: Conversation, log: list[LogMessage]) -> None:
    strange = log_of(conversation.tenant, ["user unheard of", *(f"assistant {number}" for number in range(9_999))])
    found = await store.find_link_matches(tenant=conversation.tenant, root="0" * 16, links=links(strange))
    assert found == []


async def test_an_unknown_history_of_ten_thousand_messages_costs_little(sqlite_url: str, clock: Clock) -> None:
    store = create_store(sqlite_url, clock=clock)
    await store.open()
    async with counting(store) as counter:
        statements, steps = await work_of(store, counter, 10, _resend_something_else)
    await store.close()
    assert statements <= 3
    assert steps <= 3
