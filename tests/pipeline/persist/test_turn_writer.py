"""A question is stored while its model is at work, and its answer in a second write."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import World, answered, answering, assistant, until, user, world
from tests.support.memory_store import MemoryStore


class Counting(MemoryStore):
    """A store that counts what is appended, and can be taken away from appends."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.appends: list[list[int]] = []
        """The seqs of each."""
        self.is_away = False

    async def append(self, write: LogAppend) -> None:
        if self.is_away:
            raise StoreUnavailable("The database is away.", retry_after_seconds=1)
        self.appends.append([entry.seq for entry in write.messages])
        await super().append(write)


def gated(text: str, gate: asyncio.Event) -> Reply:
    return replace(completion(text), gate=gate)


def store_of(gateway: World) -> Counting:
    assert isinstance(gateway.store, Counting)
    return gateway.store


async def test_a_turn_is_two_writes() -> None:
    async with world(ScriptedUpstream(default=answering), store=Counting()) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        history = [user("Hi"), answered("Hi"), user("Next")]
        assert (await gateway.say(history))["conversation_id"] == ours
        assert (await gateway.say([user("More")], conversation=ours))["conversation_id"] == ours
        assert store_of(gateway).appends == [[0], [1], [2], [3], [4], [5]]
        assert await gateway.log(ours) == [*history, answered("Next"), user("More"), answered("More")]
        (conversation,) = gateway.conversations()
        assert conversation.answered
        assert "pending" not in conversation.state


async def test_a_long_history_that_is_new_is_recognised_after_a_quick_turn() -> None:
    history = [message for number in range(6) for message in (user(f"Q {number}"), assistant(f"A {number}"))]
    async with world(ScriptedUpstream(default=answering), store=Counting()) as gateway:
        ours = (await gateway.say([*history, user("On")]))["conversation_id"]
        again = await gateway.say([*history, user("On"), answered("On"), user("And on")])
        assert again["conversation_id"] == ours
        assert store_of(gateway).appends == [list(range(13)), [13], [14], [15]]


async def test_a_question_is_stored_while_its_model_takes_its_time() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(gated("At last.", gate))
    async with world(upstream, store=Counting()) as gateway:
        asking = asyncio.ensure_future(gateway.say([user("Hi")]))
        await until(lambda: gateway.rows() == 1)
        assert gateway.conversations()[0].state["pending"] == 1
        gate.set()
        ours = (await asking)["conversation_id"]
        assert store_of(gateway).appends == [[0], [1]]
        assert await gateway.log(ours) == [user("Hi"), assistant("At last.")]


async def test_a_stream_begins_when_its_question_is_stored() -> None:
    async with world(ScriptedUpstream(default=answering), store=Counting()) as gateway:
        await gateway.stream([user("Hi")])
        assert store_of(gateway).appends == [[0], [1]]


async def test_of_two_quick_turns_at_one_place_the_second_branches_with_all_of_its_own() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, store=Counting()) as gateway:
        trunk = (await gateway.say([user("Hi")]))["conversation_id"]
        log = [user("Hi"), answered("Hi")]
        upstream.replies = [gated("One.", gate), gated("Two.", gate)]
        asking = [asyncio.ensure_future(gateway.say([*log, user(text)])) for text in ("This", "That")]
        await until(lambda: len(upstream.bodies) == 3)
        gate.set()
        bodies = [await one for one in asking]
        assert len({body["conversation_id"] for body in bodies}) == 2
        assert trunk in {body["conversation_id"] for body in bodies}
        for text, body in zip(("This", "That"), bodies, strict=True):
            answer = {"role": "assistant", "content": body["choices"][0]["message"]["content"]}
            assert await gateway.log(body["conversation_id"]) == [*log, user(text), answer]


@pytest.mark.parametrize("reply", [Reply({"error": {"message": "no"}}, status=400), Reply(b"nonsense")])
async def test_a_question_that_gets_no_answer_waits_for_its_retry(reply: Reply) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, store=Counting()) as gateway:
        history = [user("Hi"), answered("Hi"), user("Next")]
        ours = (await gateway.say(history[:1]))["conversation_id"]
        upstream.replies = [reply] * 3
        assert (await gateway.post(history)).status_code >= 400
        assert await gateway.log(ours) == history
        upstream.replies = []
        assert (await gateway.say(history))["conversation_id"] == ours
        assert await gateway.log(ours) == [*history, answered("Next")]


async def test_a_first_question_that_gets_no_answer_leaves_nothing() -> None:
    upstream = ScriptedUpstream(Reply({"error": {"message": "no"}}, status=400))
    async with world(upstream, store=Counting()) as gateway:
        assert (await gateway.post([user("Hi")])).status_code == 400
        assert gateway.rows() == 0
        assert gateway.conversations() == []


async def test_a_quick_turn_that_cannot_be_stored_names_no_conversation() -> None:
    async with world(ScriptedUpstream(default=answering), store=Counting()) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        store_of(gateway).is_away = True
        answer = await gateway.post([user("Hi"), answered("Hi"), user("Next")])
        body: dict[str, Any] = answer.json()
        assert (body["context_status"], body["conversation_id"]) == ("degraded", None)
        assert "x-conversation-id" not in answer.headers
        refused = await gateway.post([user("More")], conversation=ours)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        store_of(gateway).is_away = False
        assert (await gateway.say([user("Hi"), answered("Hi"), user("Next")]))["conversation_id"] == ours
