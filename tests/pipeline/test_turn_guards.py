"""Each guard of a turn by itself, where nothing else would catch what it lets through: who asks, which conversation is
meant, and whether its lease is still held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.pipeline.resolve.client_history import MIN_FAST_PATH_MESSAGES
from app.store.contract.conversations import LogAppend
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.pipeline.admission.test_idempotency_keys import KEY
from tests.pipeline.admission.test_shared_attempts_over_http import RETRY, held, leave, text_of, words_of
from tests.support.conversations_client import WINDOW, call, done, talk
from tests.support.gateway import World, answered, answering, until, user, world
from tests.support.memory_store import MemoryStore

PAIR = ("One.", "Two.")
FIRST, SECOND = {"x-conversation-id": "first"}, {"x-conversation-id": "second"}


def script_replies(*, streamed: bool) -> list[Reply]:
    return [stream(text) if streamed else completion(text) for text in PAIR]


def read_text(answer: httpx.Response, *, streamed: bool) -> str:
    assert answer.status_code == 200, answer.text
    assert "idempotent-replayed" not in answer.headers
    return words_of(answer) if streamed else text_of(answer.json())


async def run_both(options: Sequence[dict[str, Any]], *, streamed: bool, leaving: bool = False) -> None:
    """Two requests with the same body run at once: the model is asked for both, and each gets its own answer.

    Args:
        leaving: the first client hangs up before the second asks.
    """
    scripted = script_replies(streamed=streamed)
    gates = [held(reply) for reply in scripted]
    async with world(ScriptedUpstream(*scripted)) as gateway:
        asking = []
        for number, option in enumerate(options, start=1):
            asking.append(asyncio.ensure_future(gateway.post([user("Hi")], stream=streamed, **option)))
            await until(lambda number=number: len(gateway.upstream.bodies) == number)  # type: ignore[misc]
            if leaving and number == 1:
                await leave(asking.pop())
        for gate in gates:
            gate.set()
        answers = [read_text(await one, streamed=streamed) for one in asking]
    assert answers == list(PAIR[-len(asking) :])


STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
STORED = pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])


@STREAMED
@STORED
async def test_a_key_of_another_tenant_finds_no_run_in_flight(
    streamed: bool,
    stored: bool,
) -> None:
    options = [{"key": name, "headers": KEY, "store": stored} for name in ("sk-one", "sk-two")]
    await run_both(options, streamed=streamed)


@pytest.mark.parametrize("leaving", [False, True], ids=["waiting", "gone"])
async def test_a_retry_of_another_tenant_finds_no_run_in_flight(leaving: bool) -> None:
    options = [{"key": name, "headers": RETRY} for name in ("sk-one", "sk-two")]
    await run_both(options, streamed=False, leaving=leaving)


@pytest.mark.parametrize("leaving", [False, True], ids=["waiting", "gone"])
async def test_a_retry_in_another_conversation_finds_no_run_in_flight(leaving: bool) -> None:
    options = [{"headers": {**RETRY, **place}} for place in (FIRST, SECOND)]
    await run_both(options, streamed=False, leaving=leaving)


@STREAMED
@STORED
async def test_a_key_in_flight_in_one_conversation_is_refused_in_another(
    streamed: bool,
    stored: bool,
) -> None:
    scripted = script_replies(streamed=streamed)
    gate = held(scripted[0])
    options: dict[str, Any] = {"stream": streamed, "store": stored}
    async with world(ScriptedUpstream(*scripted)) as gateway:
        first = asyncio.ensure_future(gateway.post([user("Hi")], headers={**KEY, **FIRST}, **options))
        await until(lambda: len(gateway.upstream.bodies) == 1)
        second = asyncio.ensure_future(gateway.post([user("Hi")], headers={**KEY, **SECOND}, **options))
        await asyncio.wait({second}, timeout=0.5)
        gate.set()
        refused = await second
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert read_text(await first, streamed=streamed) == PAIR[0]
        assert len(gateway.upstream.bodies) == 1


@STORED
async def test_a_key_that_was_answered_in_one_conversation_is_refused_in_another(stored: bool) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([user("Hi")], headers={**KEY, **FIRST}, store=stored)
        refused = await gateway.post([user("Hi")], headers={**KEY, **SECOND}, store=stored)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert len(gateway.upstream.bodies) == 1


def answer_at_length(body: dict[str, Any]) -> Reply:
    """The same long answer to the same question."""
    question = body["messages"][-1]["content"]
    return completion(" ".join(f"Of {question!r} the archive describes part {part}." for part in range(12)))


@pytest.mark.parametrize("how", ["by its id", "as a resend", "in a chat UI"])
async def test_two_chats_with_the_same_words_stay_apart_by_their_ids(how: str) -> None:
    def named(name: str) -> dict[str, Any]:
        if how == "in a chat UI":
            return {"headers": {"x-openwebui-chat-id": name}}
        return {"conversation": name, "headers": {"x-context-mode": "resend"} if how == "as a resend" else {}}

    async with world(ScriptedUpstream(default=answering)) as gateway:
        for name in ("first", "second"):
            history, ids = [], set()
            for turn in range(MIN_FAST_PATH_MESSAGES):
                history.append(user(f"Question {turn}"))
                body = await gateway.say(history, **named(name))
                ids.add(body["conversation_id"])
                history.append(answered(f"Question {turn}"))
            assert len(ids) == 1, name
        first, second = gateway.conversations()
        assert {first.external_id, second.external_id} == {"first", "second"}
        assert first.head_seq == second.head_seq == 2 * MIN_FAST_PATH_MESSAGES - 1
        assert first.lineage == second.lineage == ()
        again = await gateway.say([*history[:4], user("Otherwise")], **named("second"))
        branch = next(one for one in gateway.conversations() if one.id == again["conversation_id"])
        by_name = {one.external_id: one.id for one in (first, second)}
        assert branch.lineage_with_self[0][0] == by_name["second"]


@pytest.mark.parametrize(("openings", "is_known"), [(["Hi"], True), (["Hi", "Hello"], False)], ids=["one", "two"])
async def test_a_rewritten_history_that_two_conversations_have_goes_on_with_neither(
    openings: list[str],
    is_known: bool,
) -> None:
    async with world(ScriptedUpstream(default=answer_at_length)) as gateway:
        for opening in openings:
            said: list[dict[str, Any]] = []
            for question in (opening, "Which ships?", "Which harbour?"):
                said.append(user(question))
                said.append((await gateway.say(said))["choices"][0]["message"])
        known = {one.id for one in gateway.conversations()}
        assert len(known) == len(openings)
        answer = await gateway.say([*said[2:], user("And now?")])  # its client has dropped the opening
        assert (answer["conversation_id"] in known) is is_known


class Elapsing(MemoryStore):
    """Time passes right before one of its appends: longer than a lease is held."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        super().__init__(clock=lambda: datetime.now(UTC) + self.ahead)
        self.seqs: list[list[int]] = []
        """Of each append."""
        self.elapses_at: int | None = None
        """The append that comes too late, counted from 0."""

    async def append(self, write: LogAppend) -> None:
        if len(self.seqs) == self.elapses_at:
            self.ahead += timedelta(hours=1)
        self.seqs.append([entry.seq for entry in write.messages])
        await super().append(write)


@pytest.mark.parametrize(("late", "seqs", "stored"), [(0, [[2]], 2), (1, [[2], [3]], 3)], ids=["question", "answer"])
async def test_a_turn_whose_lease_expired_while_the_log_stood_still_is_not_stored(
    late: int, seqs: list[list[int]], stored: int
) -> None:
    slow = completion("Too late.")
    gate = held(slow)
    store = Elapsing()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        gateway.upstream.replies = [slow]
        store.seqs, store.elapses_at = [], late
        asking = asyncio.ensure_future(gateway.post([user("Next")], conversation="c"))
        await until(lambda: len(gateway.upstream.bodies) == 2)
        await until(lambda: len(store.seqs) == 1)
        gate.set()
        refused = await asking
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conversation_busy")
        assert store.seqs == seqs
        assert len(await gateway.log(ours)) == stored
        store.elapses_at = None
        assert (await gateway.say([user("Next")], conversation="c"))["conversation_id"] == ours
        assert await gateway.log(ours) == [user("Hi"), answered("Hi"), user("Next"), answered("Next")]


@pytest.mark.parametrize("late", [0, 1], ids=["question", "answer"])
async def test_a_streamed_turn_whose_lease_expired_while_the_log_stood_still_is_not_stored(late: int) -> None:
    store = Elapsing()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        store.seqs, store.elapses_at = [], late
        answer = await gateway.post([user("Next")], conversation="c", stream=True)
        assert "conversation_busy" in answer.text
        assert len(await gateway.log(ours)) == 2 + late


async def test_of_turns_at_once_only_those_whose_leases_expired_are_not_stored() -> None:
    count = 4
    store = Elapsing()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        for number in range(count):
            await gateway.say([user("Hi")], conversation=f"c{number}")
        scripted = [completion(f"Answer {number}.") for number in range(count)]
        gates = [held(reply) for reply in scripted]
        gateway.upstream.replies = list(scripted)
        asking = []
        for number in range(count):
            asking.append(asyncio.ensure_future(gateway.post([user("Next")], conversation=f"c{number}")))
            await until(lambda number=number: len(gateway.upstream.bodies) == count + number + 1)  # type: ignore[misc]
        gates[0].set()
        assert (await asking[0]).status_code == 200
        store.ahead += timedelta(hours=1)
        for gate in gates:
            gate.set()
        answers = await asyncio.gather(*asking[1:])
        assert [answer.status_code for answer in answers] == [409] * (count - 1)
        assert count_messages(gateway) == [4] + [3] * (count - 1)


def count_messages(gateway: World) -> list[int]:
    """How long each log is."""
    return [conversation.head_seq + 1 for conversation in gateway.conversations()]


async def test_items_whose_lease_expired_while_the_log_stood_still_are_not_added() -> None:
    store = Elapsing()
    async with world(ScriptedUpstream(default=answering), store=store) as gateway:
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        store.seqs, store.elapses_at = [], 0
        item = {"type": "message", "role": "user", "content": "And this."}
        refused = await call(gateway, "POST", f"{ours}/items", json={"items": [item]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conversation_busy")
        assert store.seqs == [[2]]
        assert await gateway.log(ours) == [user("Hi"), answered("Hi")]


async def test_a_compaction_whose_lease_expired_while_the_log_stood_still_changes_no_state() -> None:
    store = Elapsing()
    async with world(ScriptedUpstream(default=answering), window=WINDOW, store=store) as gateway:
        ours = (await talk(gateway, 12))["conversation_id"]
        (before,) = gateway.conversations()
        store.seqs, store.elapses_at = [], 0
        told = await done(gateway, "POST", f"{ours}/compact", json={})
        assert told["summaries"]
        assert store.seqs == [[]]
        (after,) = gateway.conversations()
        assert after.state == before.state
