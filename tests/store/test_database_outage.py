"""The database is away: at start, later, and back again."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from app.store.store_factory import create_store
from migrations.run import prepare_database, upgrade_database
from tests.harness import gateway_config
from tests.live import ScriptedUpstream
from tests.postgres import Server
from tests.support.gateway import answered, answering, long_history, shown, summaries_asked, user, world
from tests.support.memory_store import MemoryStore

METHODS = (
    "find_link_matches",
    "find_conversation",
    "find_proofs",
    "issue_answer",
    "read_log",
    "append",
    "assign_external_id",
    "find_summaries",
    "add_summary",
    "claim_lease",
    "release_lease",
    "erase_conversation",
)


class Flaky(MemoryStore):
    """A store that can be taken away."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.away: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS and name in self.away:
            return _refuse
        return super().__getattribute__(name)

    def go(self, *methods: str) -> None:
        self.away = set(methods or METHODS)

    def come_back(self) -> None:
        self.away = set()


async def _refuse(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("The database is away.", retry_after_seconds=1)


HISTORY = [user("Hi"), answered("Hi"), user("Next")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_histories_are_served_and_appends_are_not(streamed: bool) -> None:
    store = Flaky()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        ours = (await gateway.say(HISTORY[:1]))["conversation_id"]
        store.go()
        refused = await gateway.post([user("More")], conversation=ours, stream=streamed)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "store_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        for history in (HISTORY[:1], HISTORY, [*HISTORY[:2], user("Edited")]):
            if streamed:
                events = await gateway.stream(history)
                assert {event["context_status"] for event in events} == {"degraded"}
                assert {event["conversation_id"] for event in events} == {None}
            else:
                body = await gateway.say(history)
                assert (body["context_status"], body["conversation_id"]) == ("degraded", None)
            assert gateway.upstream.requests[-1]["messages"] == history
        assert gateway.rows() == 2
        store.come_back()
        # The first answer was given again while nobody could tell to whom, so it has two owners and proves nothing.
        assert (await gateway.say(HISTORY))["conversation_id"] != ours
        later = [*HISTORY, answered(str(HISTORY[-1]["content"])), user("More")]
        theirs = (await gateway.say(later))["conversation_id"]
        store.go()
        again = [*later, answered("More"), user("Meanwhile")]
        assert (await gateway.say(again))["context_status"] == "degraded"
        store.come_back()
        after = await gateway.say([*again, answered("Meanwhile"), user("Go on")])
        assert after["conversation_id"] == theirs, "an earlier answer proves it"
        assert (await gateway.say([user("More")], conversation="c"))["context_status"] == "full"


async def test_histories_are_refused_where_that_is_configured() -> None:
    store = Flaky()
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, store=store, degraded_mode="refuse") as gateway:
        ours = (await gateway.say(HISTORY[:1]))["conversation_id"]
        asked = len(upstream.requests)
        store.go()
        for history in (HISTORY[:1], HISTORY):
            answer = await gateway.post(history)
            assert answer.status_code == 503
            assert "retry-after" in answer.headers
        assert len(upstream.requests) in (asked, asked + 1)
        store.come_back()
        assert (await gateway.say(HISTORY))["conversation_id"] == ours


@pytest.mark.parametrize("known", [True, False])
async def test_a_history_that_is_too_long_is_trimmed_without_a_model(known: bool) -> None:
    store = Flaky()
    upstream = ScriptedUpstream(default=answering)
    history = [*long_history(60, words=280), user("Well?")]
    async with world(upstream, store=store) as gateway:
        if known:
            await gateway.say(history[:1])
        store.go()
        body = await gateway.say(history)
        assert body["context_status"] == "degraded"
        assert body["context"]["dropped_messages"] > 0
        assert summaries_asked(upstream) == []
        assert shown(upstream)[-1][-1] == user("Well?")


@pytest.mark.parametrize(
    "methods",
    [
        ("append",),
        ("find_summaries",),
        ("find_summaries", "append"),
        ("claim_lease", "add_summary"),
        ("read_log",),
        ("assign_external_id",),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
async def test_a_store_that_goes_in_the_middle_of_a_turn_costs_no_history_its_answer(
    methods: tuple[str, ...],
    begun: bool,
) -> None:
    store = Flaky()
    history = [*long_history(60, words=280), user("Well?")]
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        if begun:
            await gateway.say(history[:1])
        store.go(*methods)
        body = await gateway.say(history, conversation="c", headers={"x-context-mode": "resend"})
        assert body["choices"][0]["message"]["content"] == "You said: Well?"
        alone = await gateway.say([user("Question " * 6500)])
        assert alone["choices"][0]["message"]["content"]
        store.come_back()
        assert (await gateway.say([*history, answered("Well?"), user("On")]))["context_status"] == "summarized"


class WithoutAnswers(Flaky):
    """Goes away between question and answer."""

    loses = False

    async def append(self, write: LogAppend) -> None:
        if self.loses and write.messages and write.messages[-1].message.role == "assistant":
            raise StoreUnavailable("The database is away.", retry_after_seconds=1)
        await super().append(write)


@pytest.mark.parametrize("history", [HISTORY, [*long_history(60, words=280), user("Well?")]], ids=["short", "long"])
async def test_the_last_that_a_stream_says_of_an_answer_that_was_not_stored_is_that(
    history: list[dict[str, Any]],
) -> None:
    store = WithoutAnswers()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        await gateway.say(HISTORY[:1])
        store.loses = True
        *told, ended, amended = await gateway.stream(history)
        assert ended["choices"][0]["finish_reason"] == "stop"
        assert ended["context_status"] in ("full", "summarized")
        assert amended["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert amended["context_status"] == "degraded"
        assert amended["context"]["warnings"][-1] == "The answer could not be stored."
        for name in ("id", "object", "created", "model"):
            assert len({event[name] for event in (*told, ended, amended)}) == 1


async def test_a_stream_that_needs_the_store_ends_with_an_error_where_its_answer_was_not_stored() -> None:
    store = WithoutAnswers()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        store.loses = True
        answer = await gateway.post([user("More")], conversation="c", stream=True)
        *_, error, done = [line for line in answer.text.splitlines() if line]
        assert done == "data: [DONE]"
        assert '"store_unavailable"' in error


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an SQLite file's write lock, as a stuck process would."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


async def test_a_locked_file_is_lived_with_until_it_is_free(tmp_path: Path) -> None:
    file = tmp_path / "locked.db"
    url = f"sqlite:///{file}"
    prepare_database(url, auto_migrate=True)
    store = create_store(url, timeout_seconds=0.2)
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        ours = (await gateway.say(HISTORY[:1]))["conversation_id"]
        with locked(file):
            appended = await gateway.post([user("More")], conversation=ours)
            assert appended.status_code == 503
            assert "retry-after" in appended.headers
            body = await gateway.say(HISTORY)
            assert body["context_status"] == "degraded"
            events = await gateway.stream(HISTORY)
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert (await gateway.say(HISTORY))["conversation_id"] == ours
        assert (await gateway.say([user("More")], conversation=ours))["conversation_id"] == ours


async def test_a_stopped_postgresql_is_lived_with_until_it_is_back() -> None:
    server = Server()
    try:
        server.start()
        await asyncio.to_thread(upgrade_database, server.url("postgres"))
        store = create_store(server.url("postgres"), timeout_seconds=2)
        async with world(ScriptedUpstream(default=answering), store=store) as gateway:
            ours = (await gateway.say(HISTORY[:1]))["conversation_id"]
            server.stop()
            appended = await gateway.post([user("More")], conversation=ours)
            assert appended.status_code == 503
            assert "retry-after" in appended.headers
            assert (await gateway.say(HISTORY))["context_status"] == "degraded"
            server.start()
            assert (await gateway.say(HISTORY))["conversation_id"] == ours
            assert (await gateway.say([user("More")], conversation=ours))["conversation_id"] == ours
    finally:
        server.remove()


@pytest.mark.parametrize(
    "database", ["postgresql+asyncpg://nobody:secret@127.0.0.1:1/none", "sqlite:////proc/none/x.db"]
)
def test_without_its_database_the_gateway_says_so_and_does_not_start(database: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(gateway_config("http://127.0.0.1:1/v1", database)))
    ended = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--config", str(file), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode not in (0, None)
    assert "database" in told.lower() or "x.db" in told
    assert "Traceback" not in told
    assert "secret" not in told
