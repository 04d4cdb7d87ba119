"""A conversation sent message by message is the conversation that is sent whole each time; neither grows dearer."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from app.context.count.token_counter import TokenCounter
from app.conversation.item import Item
from app.dialects.body.message import BodyMessage, ChatMessage, decode_body
from app.pipeline.view.quotations import MAX_CANDIDATES
from app.store.sqlite.backend import SqliteStore
from app.store.sqlite.threads import open_sqlite_connection
from migrations.run import prepare_database
from tests.benchmarks import flat
from tests.live import ScriptedUpstream
from tests.shared_data import FOLDER, recorded
from tests.support.gateway import World, answered, answering, long_history, shown, summaries_asked, user, world
from tests.support.memory_store import MemoryStore

RECORDING = "bfcl_memory_dev.jsonl"


def dialogues() -> list[Any]:
    """Questions of conversations: our own, and recorded ones where there are any."""
    own = [message["content"] for message in long_history(60, words=200)[::2]]
    found = [pytest.param(own, id="own")]
    if (FOLDER / RECORDING).exists():
        lines = recorded(RECORDING)
        found += [pytest.param([message["content"] for message in line["messages"]], id=line["id"]) for line in lines]
    return found


@pytest.mark.parametrize("questions", dialogues())
async def test_appending_and_resending_give_the_same_log_and_the_same_views(questions: list[str]) -> None:
    told = sum(len(question) for question in questions) // 4
    window = max(1500, told // 2)
    policies = {"additive": {"token_floor": 1}}
    logs, views, calls = [], [], []
    for appends in (True, False):
        upstream = ScriptedUpstream(default=answering)
        auth = {"pepper": "the same for both of them"}
        async with world(upstream, window=window, policies=policies, auth=auth) as gateway:
            conversation_id = await _played(gateway, questions, appends=appends)
            logs.append(await _log(gateway, conversation_id))
            views.append([json.dumps(view) for view in shown(upstream)])
            calls.append(len(summaries_asked(upstream)))
            assert len(gateway.conversations()) == 1
    assert calls[0] == calls[1] >= 1
    assert views[0] == views[1]
    assert logs[0] == logs[1]


async def _played(gateway: World, questions: list[str], *, appends: bool) -> str:
    history: list[dict[str, Any]] = []
    ids = set()
    for question in questions:
        history.append(user(question))
        if appends:
            body = await gateway.say(history[-1:], conversation="c", headers={"x-context-mode": "append"})
        else:
            body = await gateway.say(history)
        ids.add(body["conversation_id"])
        history.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    assert len(ids) == 1
    return str(ids.pop())


async def _log(gateway: World, conversation_id: str) -> list[tuple[Any, ...]]:
    (conversation,) = (one for one in gateway.conversations() if one.id == conversation_id)
    entries = await gateway.store.read_log(conversation, 0, conversation.head_seq + 1)
    return [
        (
            entry.seq,
            entry.message.raw if entry.message.role == "user" else decode_body(entry.message),
            entry.link,
            entry.tokens,
        )
        for entry in entries
    ]


class Meter(MemoryStore):
    """Counts calls, and messages that are read or handed over."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.calls: Counter[str] = Counter()

    async def find_link_matches(self, **named: Any) -> Any:
        self.calls["find"] += 1
        found = await super().find_link_matches(**named)
        self.calls["rows"] += len(found)
        return found

    async def find_conversation(self, **named: Any) -> Any:
        self.calls["get"] += 1
        return await super().find_conversation(**named)

    async def read_log_ranges(self, *arguments: Any) -> Any:
        self.calls["read"] += 1  # `read_log` calls it, too
        found = await super().read_log_ranges(*arguments)
        self.calls["rows"] += len(found)
        return found

    async def search_log(self, *arguments: Any, **named: Any) -> Any:
        self.calls["search"] += 1
        found = await super().search_log(*arguments, **named)
        self.calls["rows"] += len(found)
        return found

    async def find_summaries(self, **named: Any) -> Any:
        self.calls["chunks"] += 1
        found = await super().find_summaries(**named)
        self.calls["rows"] += len(found)
        return found

    async def append(self, write: Any) -> None:
        self.calls["append"] += 1
        await super().append(write)


class Gauge:
    """What one turn costs: store calls, rows, messages tokenized, decoded and canonicalised (for links, and for the
    alignment of the answer)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Meter) -> None:
        self._store = store
        self._work: Counter[str] = Counter()
        count, canonical = TokenCounter.count_message, BodyMessage.__dict__["canonical_form"].fget
        decode: Callable[[ChatMessage], dict[str, Any]] = ChatMessage.__dict__["body"].fget

        def counted(counter: TokenCounter, message: Item) -> int:
            self._work["tokenized bytes"] += len(message.text)
            return count(counter, message)

        def canonicalised(message: ChatMessage) -> bytes | None:
            self._work["canonicalised"] += 1
            form: bytes | None = canonical(message)
            return form

        def decoded(message: ChatMessage) -> dict[str, Any]:
            self._work["decoded"] += message._body is None
            return decode(message)

        monkeypatch.setattr(TokenCounter, "count_message", counted)
        monkeypatch.setattr(ChatMessage, "canonical_form", property(canonicalised))
        monkeypatch.setattr(ChatMessage, "body", property(decoded))

    def reset(self) -> None:
        self._store.calls.clear()
        self._work.clear()

    def read(self) -> dict[str, int]:
        return {**self._store.calls, **self._work}


@pytest.mark.parametrize("mode", ["append", "resend"])
async def test_a_turn_costs_the_same_after_ten_messages_and_after_ten_thousand(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Meter()
    gauge = Gauge(monkeypatch, store)
    upstream = ScriptedUpstream(default=answering)
    history = long_history(5000, words=4)
    async with world(upstream, store=store, window=1_000_000) as gateway:
        costs = []
        for begun in (10, 10_000):
            one = history[:begun]
            asked = [*one, user("Begin")]
            first = (await gateway.say(asked, headers={"x-context-mode": mode}))["conversation_id"]
            for turn in range(2):
                asked = [*asked, answered(str(asked[-1]["content"])), user(f"Next {turn}")]
                gauge.reset()
                if mode == "append":
                    await gateway.say(asked[-1:], conversation=first)
                else:
                    assert (await gateway.say(asked))["conversation_id"] == first
            costs.append(gauge.read())
        small, large = costs
        if mode == "resend":
            assert large == small
            assert large["decoded"] <= 8, "a short answer is counted together with the answers before it"
            assert large["canonicalised"] <= 6
            assert large.get("rows", 0) <= 2
        assert large.get("tokenized bytes", 0) <= small.get("tokenized bytes", 0)
        assert {name: large[name] for name in ("find", "get", "read", "append") if name in large} == {
            name: small[name] for name in ("find", "get", "read", "append") if name in small
        }


async def test_a_turn_that_quotes_costs_the_same_behind_ten_summaries_and_behind_a_hundred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Meter()
    gauge = Gauge(monkeypatch, store)
    upstream = ScriptedUpstream(default=answering)
    costs = []
    async with world(upstream, store=store, window=flat.WINDOW_TOKENS) as gateway:
        for size in (1_000, 10_000):
            names = {"conversation": f"of-{size}", "headers": {"x-context-mode": "append"}}
            await gateway.say([user("Begin")], **names)
            await flat.grow(store, f"of-{size}", size)
            for turn in range(3):
                gauge.reset()
                body = await gateway.say([user(flat.prose(turn))], **names)
                assert body["context"]["quoted"]
            costs.append(gauge.read())
    small, large = costs
    calls = ("find", "get", "read", "search", "chunks", "append")
    assert {name: large.get(name) for name in calls} == {name: small.get(name) for name in calls}
    assert large["read"] == 2  # the tail with what the user said, and all that is quoted
    assert large["rows"] <= 1.1 * small["rows"] <= 300


@pytest.mark.parametrize("mode", ["append", "resend"])
async def test_behind_summaries_a_turn_reads_only_what_it_shows(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Meter()
    gauge = Gauge(monkeypatch, store)
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, store=store, window=4096, policies={"additive": {"token_floor": 1}}) as gateway:
        history: list[dict[str, Any]] = []
        costs = []
        for turn in range(110):
            question = f"Question {turn}: " + " ".join(f"item{turn}n{word}" for word in range(30))
            history.append(user(question))
            gauge.reset()
            if mode == "append":
                body = await gateway.say(history[-1:], conversation="c", headers={"x-context-mode": "append"})
            else:
                body = await gateway.say(history)
            history.append(answered(question))
            if not body["context"]["compaction"]["ran"]:
                costs.append(gauge.read())
        assert len(summaries_asked(upstream)) >= 3
        late = costs[-40:]
        assert max(cost["rows"] for cost in late) <= 60 + 3 * MAX_CANDIDATES
        assert max(cost.get("tokenized bytes", 0) for cost in late) <= 1200
        assert max(sum(cost.get(name, 0) for name in ("find", "get", "read", "chunks", "append")) for cost in late) <= 8
        if mode == "resend":
            assert max(cost["canonicalised"] for cost in late) <= 6


async def test_sqlite_runs_as_many_statements_in_the_first_turns_as_in_the_last_of_many(tmp_path: Path) -> None:
    statements: list[str] = []

    def traced(*arguments: Any) -> sqlite3.Connection:
        connection = open_sqlite_connection(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    prepare_database(f"sqlite:///{tmp_path}/turns.db", auto_migrate=True)
    store = SqliteStore(tmp_path / "turns.db", clock=lambda: datetime.now(UTC), connect=traced)
    counts = []
    async with world(ScriptedUpstream(default=answering), store=store, window=500_000) as gateway:
        for turn in range(120):
            statements.clear()
            await gateway.say([user(f"Question {turn}")], conversation="c", headers={"x-context-mode": "append"})
            counts.append(len(statements))
    # What is written after an answer may count for the next turn: single turns differ on a busy machine.
    assert median(counts[5:25]) == median(counts[100:])
    assert median(counts[100:]) <= 24
