"""Requests that come again: after an error, after a hang-up, from a client that retries by itself."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.conversation.conversation_types import Conversation
from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from tests.live import DROP, TEST_DEPENDENCIES, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, assistant, call, result, until, user, world
from tests.support.memory_store import MemoryStore

FAILURE = {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}


class Unconfirming(MemoryStore):
    """Keeps one answer and does not say so. While it is unavailable, it finds no conversation."""

    loses_next_answer = False
    is_unavailable = False

    async def find_conversation(self, *, tenant: str, conversation_id: str) -> Conversation | None:
        if self.is_unavailable:
            raise StoreUnavailable("The connection was refused.")
        return await super().find_conversation(tenant=tenant, conversation_id=conversation_id)

    async def append(self, write: LogAppend) -> None:
        await super().append(write)
        if self.loses_next_answer and write.messages and write.messages[-1].message.role == "assistant":
            self.loses_next_answer = False
            raise StoreUnavailable("The connection was lost.")


def refusal() -> Reply:
    return Reply(FAILURE, status=400)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_before_the_first_byte_leaves_no_conversation_behind(streamed: bool) -> None:
    async with world(ScriptedUpstream(refusal())) as gateway:
        answer = await gateway.post([user("Hi")], stream=streamed)
        assert (answer.status_code, answer.json()) == (400, FAILURE)
        assert gateway.conversations() == []
        assert gateway.rows() == 0
        assert (await gateway.say([user("Hi")]))["context_status"] == "full"
        assert len(gateway.conversations()) == 1


async def test_a_stream_that_brings_nothing_leaves_no_conversation_behind() -> None:
    async with world(ScriptedUpstream(Reply(pieces=[DROP]))) as gateway:
        answer = await gateway.post([user("Hi")], stream=True)
        assert "error" in answer.text
        assert gateway.conversations() == []


async def test_a_question_in_a_known_conversation_waits_for_its_retry() -> None:
    async with world(ScriptedUpstream()) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        history = [user("Hi"), assistant("Fine."), user("Next")]
        gateway.upstream.replies = [refusal()]
        failed = await gateway.post(history)
        assert failed.status_code == 400
        assert failed.headers["x-conversation-id"] == ours
        assert [m["content"] for m in await gateway.log(ours)] == ["Hi", "Fine.", "Next"]
        retried = await gateway.say(history, headers={"x-stainless-retry-count": "1"})
        assert retried["conversation_id"] == ours
        assert [m["content"] for m in await gateway.log(ours)] == ["Hi", "Fine.", "Next", "Fine."]
        assert len(gateway.conversations()) == 1


async def test_an_appended_question_is_answered_by_its_retry_and_not_added_twice() -> None:
    async with world(ScriptedUpstream(refusal())) as gateway:
        assert (await gateway.post([user("Hi")], conversation="c")).status_code == 400
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        assert [m["content"] for m in await gateway.log(ours)] == ["Hi", "Fine."]
        gateway.upstream.replies = [refusal(), refusal()]
        await gateway.post([user("Next")], conversation="c")
        await gateway.post([user("Next")], conversation="c")
        await gateway.say([user("Next")], conversation="c")
        assert [m["content"] for m in await gateway.log(ours)] == ["Hi", "Fine.", "Next", "Fine."]


async def test_a_retry_behind_another_unanswered_question_is_recognised() -> None:
    async with world(ScriptedUpstream(refusal(), refusal())) as gateway:
        await gateway.post([user("First try")], conversation="c")
        await gateway.post([user("Second try")], conversation="c")
        ours = (await gateway.say([user("Second try")], conversation="c"))["conversation_id"]
        assert [m["content"] for m in await gateway.log(ours)] == ["First try", "Second try", "Fine."]


async def test_the_same_question_after_an_answer_is_a_new_one() -> None:
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([user("Roll the dice")], conversation="c")
        ours = (await gateway.say([user("Roll the dice")], conversation="c"))["conversation_id"]
        assert len(await gateway.log(ours)) == 4


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_sdks_retry_of_a_turn_that_was_answered_meanwhile_adds_nothing(streamed: bool) -> None:
    """The client timed out while the answer was on its way; its SDK sends the same body once more."""
    upstream = ScriptedUpstream(stream("The ", "answer.") if streamed else completion("The answer."))
    async with world(upstream) as gateway:
        await (gateway.stream if streamed else gateway.say)([user("Hi")], conversation="c")
        ours = gateway.conversations()[0].id
        retry = {"x-stainless-retry-count": "1"}
        if streamed:
            events = await gateway.stream([user("Hi")], conversation="c", headers=retry)
            said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
            assert {event["conversation_id"] for event in events} == {ours}
        else:
            body = await gateway.say([user("Hi")], conversation="c", headers=retry)
            said = body["choices"][0]["message"]["content"]
            assert body["conversation_id"] == ours
        assert said == "The answer."
        assert [m["content"] for m in await gateway.log(ours)] == ["Hi", "The answer."]
        assert len(gateway.upstream.requests) == 1


async def test_what_came_before_a_break_is_kept_and_marked() -> None:
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), 0.05, DROP])
    async with world(ScriptedUpstream(broken)) as gateway:
        answer = await gateway.post([user("Hi")], stream=True, conversation="c")
        frames = [line for line in answer.text.splitlines() if line]
        assert "error" in json.loads(frames[-2].removeprefix("data: "))
        (conversation,) = gateway.conversations()
        entries = await gateway.store.read_log(conversation, 0, 9)
        assert [(entry.message.text, entry.incomplete) for entry in entries] == [("Hi", False), ("Half an", True)]


async def test_an_appended_question_whose_answer_broke_off_is_answered_by_its_retry_and_not_added_twice() -> None:
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), 0.05, DROP])
    async with world(ScriptedUpstream(broken, broken, stream("Whole."))) as gateway:
        for _ in range(3):
            answer = await gateway.post([user("Hi")], stream=True, conversation="c")
        assert "Whole." in answer.text
        assert [body["messages"] for body in gateway.upstream.requests] == [[user("Hi")]] * 3
        await gateway.say([user("Next")], conversation="c")
        assert gateway.upstream.requests[-1]["messages"] == [user("Hi"), assistant("Whole."), user("Next")]
        (conversation,) = gateway.conversations()
        said_in_log = [message["content"] for message in await gateway.log(conversation.id)]
        assert said_in_log == ["Hi", "Half an", "Half an", "Whole.", "Next", "Fine."]


async def test_another_question_after_an_answer_that_broke_off_is_a_new_one() -> None:
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), 0.05, DROP])
    async with world(ScriptedUpstream(broken)) as gateway:
        await gateway.post([user("Hi")], stream=True, conversation="c")
        await gateway.say([user("Go on")], conversation="c")
        assert gateway.upstream.requests[-1]["messages"] == [user("Hi"), assistant("Half an"), user("Go on")]


@pytest.mark.parametrize("answer", [completion("Lost."), completion(None, tool_calls=[call("see", call_id="c2")])])
async def test_appended_tool_results_that_come_again_after_their_answer_was_lost_count_once(answer: Reply) -> None:
    """The process that stored the answer may be gone, so nothing but the results says that they came before."""
    called = completion(None, tool_calls=[call("look", call_id="c1")])
    appends: Any = {"conversation": "c", "headers": {"x-context-mode": "append"}}
    async with world(ScriptedUpstream(called, answer, completion("Once."))) as gateway:
        await gateway.say([user("Hi")], **appends)
        await gateway.say([result("7", call_id="c1")], **appends)
        assert said(await gateway.say([result("7", call_id="c1")], **appends)) == "Once."
        assert gateway.upstream.requests[-1]["messages"] == gateway.upstream.requests[-2]["messages"]
        await gateway.say([user("Next")], **appends)
        contents = [message.get("content") for message in gateway.upstream.requests[-1]["messages"]]
        assert contents == ["Hi", None, "7", "Once.", "Next"]


async def test_equal_results_of_calls_that_are_named_alike_are_new() -> None:
    """Some providers count their calls anew in each answer."""
    called = completion(None, tool_calls=[call("look", call_id="c1")])
    appends: Any = {"conversation": "c", "headers": {"x-context-mode": "append"}}
    async with world(ScriptedUpstream(called, called)) as gateway:
        await gateway.say([user("Hi")], **appends)
        await gateway.say([result("7", call_id="c1")], **appends)
        await gateway.say([result("7", call_id="c1")], **appends)
        assert [one["role"] for one in gateway.upstream.requests[-1]["messages"]].count("tool") == 2


async def test_a_client_that_hangs_up_on_a_stream_keeps_what_had_come() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), 30]))
    async with world(upstream) as gateway:
        await _hang_up_after_first_bytes(gateway, {"conversation": "c"})
        await asyncio.wait_for(upstream.left.wait(), 30)
        (conversation,) = gateway.conversations()
        entries = await _settled(gateway, conversation.id, 2)
        assert entries == ["Hi", "Half an"]
        body = await asyncio.wait_for(gateway.say([user("Go on")], conversation="c"), 10)
        assert body["conversation_id"] == conversation.id


async def test_a_client_that_hangs_up_before_the_first_byte_can_ask_again() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[30]))
    async with world(upstream) as gateway:
        asking = asyncio.ensure_future(gateway.say([user("Hi")], conversation="c", stream=True))
        await until(lambda: bool(upstream.bodies))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(upstream.left.wait(), 30)
        again = await asyncio.wait_for(gateway.say([user("Hi")], conversation="c"), 10)
        assert [m["content"] for m in await gateway.log(again["conversation_id"])] == ["Hi", "Fine."]


async def test_identical_requests_at_once_both_get_answers_and_lose_nothing() -> None:
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([user("Hi")])
        history = [user("Hi"), assistant("Fine."), user("Next")]
        answers = await asyncio.gather(*(gateway.say(history) for _ in range(4)))
        for body in answers:
            log = [m["content"] for m in await gateway.log(body["conversation_id"])]
            assert log == ["Hi", "Fine.", "Next", "Fine."]


async def _hang_up_after_first_bytes(gateway: World, fields: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "stream": True, "messages": [user("Hi")], **fields}
        headers = {"authorization": "Bearer sk-one"}
        async with client.stream("POST", f"{gateway.base_url}/chat/completions", json=body, headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                if b"Half an" in piece:
                    break


async def _settled(gateway: World, conversation_id: str, messages: int) -> list[Any]:
    await until(lambda: gateway.rows() == messages)
    return [message["content"] for message in await gateway.log(conversation_id)]


async def test_a_retry_of_an_appended_turn_says_how_full_its_context_was() -> None:
    async with world(ScriptedUpstream()) as gateway:
        first = await gateway.post([user("Hi")], conversation="c")
        again = await gateway.post([user("Hi")], conversation="c", headers={"x-stainless-retry-count": "1"})
        assert again.headers["x-context-tokens"] == first.headers["x-context-tokens"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_appended_while_the_first_turn_runs_waits_for_its_answer(streamed: bool) -> None:
    """The id is known from the moment the first question is stored, long before it is answered."""
    gate = asyncio.Event()
    slow = Reply(completion("First.").body, gate=gate)
    if streamed:
        slow = Reply(pieces=[chunk({"content": "First."}), chunk({}, "stop"), b"data: [DONE]\n\n"], gate=gate)
    async with world(ScriptedUpstream(slow, completion("Second."))) as gateway:
        first = asyncio.ensure_future(gateway.post([user("One")], conversation="c", stream=streamed))
        await until(lambda: gateway.rows() > 0)
        second = asyncio.ensure_future(gateway.post([user("Two")], conversation="c"))
        await asyncio.wait({second}, timeout=0.1)
        gate.set()
        assert [(await answer).status_code for answer in (first, second)] == [200, 200]
        (conversation,) = gateway.conversations()
        said = [message["content"] for message in await gateway.log(conversation.id)]
        assert said == ["One", "First.", "Two", "Second."]


async def test_a_retry_while_the_first_attempt_of_a_first_turn_runs_gets_its_answer() -> None:
    gate = asyncio.Event()
    slow = Reply(completion("The answer.").body, gate=gate)
    async with world(ScriptedUpstream(slow, completion("Another."))) as gateway:
        first = asyncio.ensure_future(gateway.say([user("Hi")], conversation="c"))
        await until(lambda: gateway.rows() > 0)
        retry = {"x-stainless-retry-count": "1"}
        second = asyncio.ensure_future(gateway.say([user("Hi")], conversation="c", headers=retry))
        await asyncio.wait({second}, timeout=0.1)
        gate.set()
        answers = [(await answer)["choices"][0]["message"]["content"] for answer in (first, second)]
        assert answers == ["The answer.", "The answer."]
        assert len(gateway.upstream.requests) == 1


@pytest.mark.parametrize("turns", [1, 6])
async def test_an_sdks_retry_of_a_resent_history_that_was_answered_meanwhile_gets_that_answer(turns: int) -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = []
        for turn in range(turns):
            history.append(user(f"Question {turn}"))
            await gateway.say(history)
            history.append(assistant("Fine."))
        history.append(user("The last"))
        gateway.upstream.replies = [completion("The answer."), completion("Another.")]
        first = await gateway.say(history)
        again = await gateway.say(history, headers={"x-stainless-retry-count": "1"})
        assert again["conversation_id"] == first["conversation_id"]
        assert again["choices"][0]["message"]["content"] == "The answer."
        assert len(gateway.conversations()) == 1
        regenerated = await gateway.say(history)
        assert regenerated["choices"][0]["message"]["content"] == "Another."
        assert regenerated["conversation_id"] != first["conversation_id"]


RETRY = {"x-stainless-retry-count": "1"}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def said(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("turns", [0, 1, 6], ids=["appended", "resent", "resent at length"])
@pytest.mark.parametrize(
    "difference",
    [
        {"model": "x"},
        {"temperature": 0.5},
        {"n": 2},
        {"tools": [WEATHER]},
        {"max_tokens": 7},
        {"headers": {"x-context-policy": "other"}},
        {"headers": {"openai-project": "other"}},
    ],
    ids="-".join,
)
async def test_a_retry_of_another_request_with_the_same_messages_is_answered_anew(
    difference: dict[str, Any],
    turns: int,
) -> None:
    fields = {} if turns else {"conversation": "c"}
    async with world(ScriptedUpstream(), policies={"other": {}}) as gateway:
        history = await _talk(gateway, turns)
        gateway.upstream.replies = [completion("The answer."), completion("Another.")]
        assert said(await gateway.say(history, **fields)) == "The answer."
        options = {**fields, **difference, "headers": {**RETRY, **difference.get("headers", {})}}
        again = await gateway.post(history, **options)
        assert (again.status_code, said(again.json())) == (200, "Another.")


async def _talk(gateway: World, turns: int) -> list[dict[str, Any]]:
    """Hold a talk of so many turns; the history with the next question."""
    history = []
    for turn in range(turns):
        history.append(user(f"Question {turn}"))
        await gateway.say(history)
        history.append(assistant("Fine."))
    return [*history, user("Next")]


@pytest.mark.parametrize("turns", [1, 6])
async def test_a_retry_with_other_instructions_is_answered_anew(turns: int) -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = await _talk(gateway, turns)
        gateway.upstream.replies = [completion("The answer."), completion("Another.")]
        await gateway.say([{"role": "system", "content": "Be brief."}, *history])
        other = [{"role": "system", "content": "Be quiet."}, *history]
        assert said(await gateway.say(other, headers=RETRY)) == "Another."


@pytest.mark.parametrize("turns", [0, 1, 6])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_retry_of_a_failed_regeneration_does_not_get_the_old_answer(
    streamed: bool,
    turns: int,
) -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = await _talk(gateway, turns)
        old, new = (stream("Old."), stream("New.")) if streamed else (completion("Old."), completion("New."))
        gateway.upstream.replies = [old, refusal(), new]
        await gateway.post(history, stream=streamed)
        assert (await gateway.post(history, stream=streamed)).status_code == 400
        retried = await gateway.post(history, stream=streamed, headers=RETRY)
        assert "New." in retried.text
        assert "idempotent-replayed" not in retried.headers


async def test_a_retry_of_a_second_yes_that_failed_does_not_get_the_answer_of_the_first() -> None:
    """The second one is refused before it is stored: its conversation is busy for too long."""
    async with world(ScriptedUpstream(), compaction={"wait_seconds": 0.1}) as gateway:
        ours = (await gateway.say([user("Shall we?")], conversation="c"))["conversation_id"]
        gateway.upstream.replies = [completion("First."), completion("Second.")]
        assert said(await gateway.say([user("yes")], conversation="c")) == "First."
        (conversation,) = gateway.conversations()
        lease = await gateway.store.claim_lease(root=conversation.root, key=ours, holder="other", seconds=30)
        assert (await gateway.post([user("yes")], conversation="c")).status_code == 409
        await gateway.store.release_lease(lease)
        assert said(await gateway.say([user("yes")], conversation="c", headers=RETRY)) == "Second."
        log = [message["content"] for message in await gateway.log(ours)]
        assert log == ["Shall we?", "Fine.", "yes", "First.", "yes", "Second."]


async def test_a_yes_that_nobody_waited_for_is_no_answer_to_a_later_yes() -> None:
    slow = completion("First.")
    slow.gate = asyncio.Event()
    async with world(ScriptedUpstream(completion("Well?"), slow)) as gateway:
        ours = (await gateway.say([user("Shall we?")], conversation="c"))["conversation_id"]
        left = asyncio.ensure_future(gateway.post([user("yes")], conversation="c"))
        await until(lambda: len(gateway.upstream.bodies) == 2)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await asyncio.sleep(0.05)
        slow.gate.set()
        await until(lambda: gateway.rows() == 4)
        gateway.upstream.replies = [completion("More."), completion("Second.")]
        await gateway.say([user("And then?")], conversation="c")
        assert said(await gateway.say([user("yes")], conversation="c")) == "Second."
        assert len(await gateway.log(ours)) == 8


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_retry_gets_the_answer_of_the_newest_attempt(streamed: bool) -> None:
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([user("Hi")])
        history = [user("Hi"), assistant("Fine."), user("Next")]
        one, two = (stream("One."), stream("Two.")) if streamed else (completion("One."), completion("Two."))
        gateway.upstream.replies = [one, two]
        await gateway.post(history, stream=streamed)
        await gateway.post(history, stream=streamed)
        assert "Two." in (await gateway.post(history, stream=streamed, headers=RETRY)).text
        assert len(gateway.upstream.bodies) == 3


@pytest.mark.parametrize("fields", [{}, {"conversation": "c"}], ids=["resent", "appended"])
@pytest.mark.parametrize("minutes", [9, 11])
async def test_a_retry_on_another_replica_gets_an_answer_of_the_last_ten_minutes(
    minutes: int,
    fields: dict[str, Any],
) -> None:
    aged = timedelta(minutes=minutes)
    store = MemoryStore(clock=lambda: datetime.now(UTC) - aged)
    history = [user("Hi")] if fields else [user("Hi"), assistant("Fine."), user("Next")]
    async with world(ScriptedUpstream(), store=store) as gateway:
        if not fields:
            await gateway.say([user("Hi")])
        gateway.upstream.replies = [completion("The answer.")]
        await gateway.say(history, **fields)
    async with world(ScriptedUpstream(completion("Another.")), store=store) as other:
        again = await other.say(history, headers=RETRY, **fields)
        assert said(again) == ("The answer." if minutes < 10 else "Another.")


async def test_a_retry_whose_answer_was_erased_is_answered_anew() -> None:
    async with world(ScriptedUpstream(completion("Secret."), completion("Another."))) as gateway:
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        items = f"{gateway.base_url}/conversations/{ours}/items"
        headers = {"authorization": "Bearer sk-one"}
        newest = (await gateway.client.get(f"{items}?limit=1", headers=headers)).json()["data"][0]["id"]
        deleted = await gateway.client.delete(f"{items}/{newest}?erase=true", headers=headers)
        assert deleted.status_code == 200
        assert said(await gateway.say([user("Hi")], conversation="c", headers=RETRY)) == "Another."


async def test_a_retry_whose_conversation_was_deleted_is_answered_anew() -> None:
    async with world(ScriptedUpstream(completion("Secret."), completion("Another."))) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        headers = {"authorization": "Bearer sk-one"}
        deleted = await gateway.client.delete(f"{gateway.base_url}/conversations/{ours}", headers=headers)
        assert deleted.status_code == 200
        assert said(await gateway.say([user("Hi")], headers=RETRY)) == "Another."


async def test_half_an_answer_is_none_for_a_retry_on_another_replica() -> None:
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), 0.05, DROP])
    async with world(ScriptedUpstream(broken), store=store) as gateway:
        await gateway.post([user("Hi")], stream=True, conversation="c")
    async with world(ScriptedUpstream(stream("Whole.")), store=store) as other:
        assert "Whole." in (await other.post([user("Hi")], stream=True, conversation="c", headers=RETRY)).text


async def test_a_retry_with_another_key_is_another_request() -> None:
    async with world(ScriptedUpstream(completion("One."), completion("Two."))) as gateway:
        for key, answer in (("a", "One."), ("b", "Two."), ("a", "One.")):
            headers = {**RETRY, "idempotency-key": key}
            assert said(await gateway.say([user("Hi")], conversation="c", headers=headers)) == answer


async def test_a_delivered_answer_that_is_not_stored_is_kept_nowhere() -> None:
    async with world(ScriptedUpstream(completion("One."), completion("Two."))) as gateway:
        assert said(await gateway.say([user("Hi")], store=False)) == "One."
        assert said(await gateway.say([user("Hi")], headers=RETRY, store=False)) == "Two."
        assert gateway.rows() == 0


@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "k"}], ids=["counted", "keyed"])
@pytest.mark.parametrize("fields", [{}, {"conversation": "c"}], ids=["resent", "appended"])
async def test_a_retry_that_comes_back_gets_what_another_replica_has_answered_meanwhile(
    fields: dict[str, Any],
    headers: dict[str, str],
) -> None:
    """It fails here, is answered there with nobody to hear it, and is sent here again."""
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    first, later = {**headers}, {**headers, **RETRY}
    first.pop("x-stainless-retry-count", None)
    history = [user("Hi")] if fields else [user("Hi"), assistant("Fine."), user("Next")]
    async with world(ScriptedUpstream(), store=store) as here:
        if not fields:
            await here.say([user("Hi")])
        here.upstream.replies = [refusal(), refusal(), completion("Twice.")]
        assert (await here.post(history, headers=first, **fields)).status_code == 400
        assert (await here.post(history, headers=later, **fields)).status_code == 400
        async with world(ScriptedUpstream(completion("Once.")), store=store) as there:
            assert said(await there.say(history, headers=later, **fields)) == "Once."
        assert said(await here.say(history, headers=later, **fields)) == "Once."


@pytest.mark.parametrize("headers", [{}, RETRY, {"idempotency-key": "k"}], ids=["plain", "counted", "keyed"])
async def test_an_answer_whose_writing_was_not_confirmed_is_given_to_the_retry(
    headers: dict[str, str],
) -> None:
    """The database has kept the answer, but its word of that was lost: the client was told of an error."""
    store = Unconfirming(clock=lambda: datetime.now(UTC))
    async with world(ScriptedUpstream(completion("Once."), completion("Twice.")), store=store) as gateway:
        store.loses_next_answer = True
        first = {name: value for name, value in headers.items() if name not in RETRY}
        assert (await gateway.post([user("Hi")], conversation="c", headers=first)).status_code == 503
        again = await gateway.say([user("Hi")], conversation="c", headers=headers)
        assert said(again) == "Once."
        assert len(await gateway.log(again["conversation_id"])) == 2


@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "k"}], ids=["counted", "keyed"])
async def test_a_retry_that_fails_in_another_replica_hides_no_earlier_answer(
    headers: dict[str, str],
) -> None:
    """The first attempt was answered there, unconfirmed. Here only its retries are known: one fails, another comes."""
    store = Unconfirming(clock=lambda: datetime.now(UTC))
    first, later = {name: value for name, value in headers.items() if name not in RETRY}, {**headers, **RETRY}
    if "idempotency-key" in headers:
        later = headers
    async with world(ScriptedUpstream(completion("Once.")), store=store) as there:
        store.loses_next_answer = True
        assert (await there.post([user("Hi")], conversation="c", headers=first)).status_code == 503
    async with world(ScriptedUpstream(completion("Twice.")), store=store) as here:
        store.is_unavailable = True
        assert (await here.post([user("Hi")], conversation="c", headers=later)).status_code == 503
        store.is_unavailable = False
        again = await here.say([user("Hi")], conversation="c", headers=later)
        assert said(again) == "Once."
        assert len(await here.log(again["conversation_id"])) == 2


@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "k"}], ids=["counted", "keyed"])
async def test_the_time_of_day_may_be_set_forward_while_an_answer_is_written(
    headers: dict[str, str],
) -> None:
    """As after a machine was paused: its steady clock stood still meanwhile."""
    ahead = timedelta()

    def now() -> datetime:
        return datetime.now(UTC) + ahead

    store, dependencies = Unconfirming(clock=now), dataclasses.replace(TEST_DEPENDENCIES, now=now)
    upstream = ScriptedUpstream(completion("Once."), completion("Twice."))
    async with world(upstream, store=store, dependencies=dependencies) as gateway:
        store.loses_next_answer = True
        first = {name: value for name, value in headers.items() if name not in RETRY}
        assert (await gateway.post([user("Hi")], conversation="c", headers=first)).status_code == 503
        ahead = timedelta(minutes=1)
        again = await gateway.say([user("Hi")], conversation="c", headers={**headers, **RETRY})
        assert said(again) == "Once."
