"""Agents name their conversation, and after each call of a tool send all of the run that is under way again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import World, assistant, call, result, texts, user, world
from tests.support.memory_store import MemoryStore

NAMED = {"x-conversation-id": "agent-1"}
CALLED = assistant(None, tool_calls=[call("look")])


def calls_where_asked(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "user" and "look" in last["content"]:
        return completion(None, tool_calls=[call("look")])
    return completion("Fine.")


async def run(gateway: World, asked: str) -> list[dict[str, Any]]:
    """One run of an agent with one call of a tool; the bodies of its answers."""
    begun = await gateway.say([user(asked)], headers=NAMED)
    return [begun, await gateway.say([user(asked), CALLED, result("7")], headers=NAMED)]


@pytest.mark.parametrize("first", ["The key hangs here.", "look at the key"])
async def test_each_run_follows_the_ones_before(first: str) -> None:
    async with world(ScriptedUpstream(default=calls_where_asked)) as gateway:
        answers = await run(gateway, first) if "look" in first else [await gateway.say([user(first)], headers=NAMED)]
        answers += await run(gateway, "look again")
        answers += await run(gateway, "look again")
        answers.append(await gateway.say([user("Where?")], headers=NAMED))
        (ours,) = {body["conversation_id"] for body in answers}
        assert {body["context_status"] for body in answers} == {"full"}
        asked = gateway.upstream.requests[-1]["messages"]
        again = ["look again", None, "7", "Fine."]
        begun = ["look at the key", None, "7", "Fine."] if "look" in first else [first, "Fine."]
        assert texts(asked) == [*begun, *again, *again, "Where?"]
        assert texts(await gateway.log(ours)) == [*texts(asked), "Fine."]


async def test_a_run_that_another_conversation_knows_stays_in_its_own() -> None:
    async with world(ScriptedUpstream(default=calls_where_asked)) as gateway:
        await gateway.say([user("look")])
        await gateway.say([user("look"), CALLED, result("7")])
        ours = (await gateway.say([user("Hi")], headers=NAMED))["conversation_id"]
        assert {body["conversation_id"] for body in await run(gateway, "look")} == {ours}


async def test_a_retry_of_a_run_is_not_stored_twice() -> None:
    sent = [user("look"), CALLED, result("7")]
    retried = {**NAMED, "x-stainless-retry-count": "1"}
    async with world(ScriptedUpstream(default=calls_where_asked)) as gateway:
        ours = (await gateway.say([user("Hi")], headers=NAMED))["conversation_id"]
        await gateway.say(sent[:1], headers=NAMED)
        gateway.upstream.replies = [Reply({"error": {"message": "no"}}, status=400)]
        assert (await gateway.post(sent, headers=NAMED)).status_code == 400
        await gateway.say(sent, headers=retried)
        calls = len(gateway.upstream.requests)
        await gateway.say(sent, headers=retried)
        assert len(gateway.upstream.requests) == calls
        assert texts(await gateway.log(ours)) == ["Hi", "Fine.", "look", None, "7", "Fine."]


async def test_a_run_with_an_edited_question_goes_on_in_the_words_of_its_client() -> None:
    async with world(ScriptedUpstream(default=calls_where_asked)) as gateway:
        await gateway.say([user("Hi")], headers=NAMED)
        ours = (await gateway.say([user("look")], headers=NAMED))["conversation_id"]
        other = await gateway.say([user("look elsewhere"), CALLED, result("7")], headers=NAMED)
        assert other["context_status"] == "full"
        assert other["conversation_id"] == ours
        asked = gateway.upstream.requests[-1]["messages"]
        assert asked == [user("look elsewhere"), CALLED, result("7")]


async def test_a_call_that_its_client_gave_up_does_not_spoil_the_conversation() -> None:
    both = [call("look", call_id="c1"), call("see", call_id="c2")]
    upstream = ScriptedUpstream(completion(None, tool_calls=both), default=calls_where_asked)
    async with world(upstream) as gateway:
        ours = (await gateway.say([user("Begin")], headers=NAMED))["conversation_id"]
        upstream.replies = [Reply({"error": {"message": "no"}}, status=400)]
        assert (await gateway.post([result("7", call_id="c1")], headers=NAMED)).status_code == 400
        upstream.replies = [Reply({"error": {"message": "no"}}, status=400)]
        assert (await gateway.post([user("Never mind.")], headers=NAMED)).status_code == 400
        await gateway.say([user("Never mind.")], headers=NAMED)
        await gateway.say([user("Well?")], headers=NAMED)
        asked = gateway.upstream.requests[-1]["messages"]
        results = [message["tool_call_id"] for message in asked if message["role"] == "tool"]
        assert sorted(results) == ["c1", "c2"]
        assert texts(await gateway.log(ours))[-4:] == ["Never mind.", "Fine.", "Well?", "Fine."]


class Forgetting(MemoryStore):
    """Keeps no first answer that says `Lost.`"""

    has_lost = False

    async def append(self, write: LogAppend) -> None:
        if not self.has_lost and any(entry.message.text == "Lost." for entry in write.messages):
            self.has_lost = True
            raise StoreUnavailable("The database is away.")
        await super().append(write)


@pytest.mark.parametrize("before", [[], [user("Hi"), assistant("Fine.")]], ids=["whole_log", "tail_of_the_log"])
async def test_messages_whose_answer_was_given_and_not_stored_are_not_added_again(before: list[dict[str, Any]]) -> None:
    called, other = completion(None, tool_calls=[call("look")]), completion("Well.")
    replies = [*[completion("Fine.") for _ in before[::2]], called, stream("Lost."), other]
    store = Forgetting(clock=lambda: datetime.now(UTC))
    async with world(ScriptedUpstream(*replies), store=store) as gateway:
        if before:
            await gateway.say(before[:1], headers=NAMED)
        ours = (await gateway.say([user("look")], headers=NAMED))["conversation_id"]
        sent = [user("look"), CALLED, result("7")]
        assert "Lost." in (await gateway.post(sent, headers=NAMED, stream=True)).text
        sent += [assistant("Lost."), user("Well?")]
        assert (await gateway.post(sent, headers=NAMED)).status_code == 200
        expected = [*before, *sent]
        assert gateway.upstream.requests[-1]["messages"] == expected
        assert texts(await gateway.log(ours)) == [*texts(expected), "Well."]
