"""Histories that come back in their clients' own shapes, and histories that only look alike."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.conversation.conversation_types import Conversation
from app.dialects.body.canonical_message import canonicalize_message
from app.dialects.body.message import ChatMessage
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import Messages, assistant, call, result, system, user, world
from tests.support.memory_store import MemoryStore

RECORDINGS = Path(__file__).parents[4] / "shared" / "eval" / "resent_histories.jsonl"

ARGUMENTS = '{"place": "Köln",  "days": 2.0, "note": "d\\u00e9j\\u00e0"}'
FORECAST = '{"high": 19.0, "sky": "gr\\u00e5"}'
CALLING: dict[str, Any] = {
    "content": "One moment.\n",
    "tool_calls": [call("forecast", ARGUMENTS)],
    "refusal": None,
    "annotations": [],
    "reasoning_content": "they want weather",
}
FINAL: dict[str, Any] = {
    "content": "Grey, 19 degrees. \n",
    "refusal": None,
    "annotations": [],
    "reasoning_content": "easy",
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "as it was answered": [
        {"role": "assistant", **CALLING},
        result(FORECAST),
        {"role": "assistant", **FINAL},
    ],
    "with every absent field as null": [
        {"role": "assistant", "audio": None, "function_call": None, **CALLING},
        result(FORECAST),
        {"role": "assistant", "audio": None, "function_call": None, "tool_calls": None, **FINAL},
    ],
    "with arguments and results written anew and text dropped": [
        assistant(None, tool_calls=[call("forecast", '{"days":2,"note":"déjà","place":"Köln"}')]),
        {"content": '{"high":19,"sky":"grå"}', **{k: v for k, v in result("").items() if k != "content"}},
        assistant("Grey, 19 degrees."),
    ],
    "with text in parts and an index in each call": [
        assistant("", tool_calls=[{**call("forecast", ARGUMENTS), "index": 0}], parsed=None),
        {**result(""), "content": [{"type": "text", "text": FORECAST}]},
        assistant(None) | {"content": [{"type": "text", "text": "Grey, 19 "}, {"type": "text", "text": "degrees."}]},
    ],
    "with vendor fields and thoughts in the text": [
        {"role": "assistant", "provider_specific_fields": {"refusal": None}, **CALLING},
        {**result(FORECAST), "name": "forecast"},
        assistant("<think>easy</think>\n\nGrey, 19 degrees."),
    ],
}


def _recorded() -> list[Any]:
    if not RECORDINGS.exists():
        reason = pytest.mark.skip(reason="the recordings are not on this machine")
        return [pytest.param(None, id="none", marks=reason)]
    lines = [json.loads(line) for line in RECORDINGS.read_text().splitlines()]
    return [pytest.param(line["requests"], id=line["client"]) for line in lines]


def _answers_in(requests: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What an upstream must have answered for each request but the last: the recording's own next message.

    A client that drops tool traffic shows only the last step's answer; the missing one is its tool call again.
    """
    answers = []
    seen_calls = [m for request in requests for m in request if m.get("tool_calls")]
    for request, following in itertools.pairwise(requests):
        new = following[len(request) :]
        if new and new[0]["role"] == "assistant":
            answers.append(new[0])
            continue
        finals = [m for m in following if m["role"] == "assistant" and not m.get("tool_calls")]
        answers.append(finals[-1] if finals else seen_calls[0])
    return answers


@pytest.mark.parametrize("requests", _recorded())
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_what_real_clients_resend_is_one_conversation(
    requests: list[list[dict[str, Any]]],
    streamed: bool,
) -> None:
    answers = _answers_in(requests)
    last = assistant("The end.")
    replies = [_streamed(message) if streamed else _whole(message) for message in [*answers, last]]
    async with world(ScriptedUpstream(*replies)) as gateway:
        ids = set()
        for request in requests:
            if streamed:
                ids |= {event["conversation_id"] for event in await gateway.stream(request)}
            else:
                ids.add((await gateway.say(request))["conversation_id"])
        assert len(ids) == 1
        assert len(gateway.conversations()) == 1
        log = await gateway.log(ids.pop())
        assert [_form(message) for message in log] == [_form(message) for message in _truth(requests, [*answers, last])]
        for request, sent in zip(requests, gateway.upstream.requests, strict=True):
            assert sent["messages"] == request


def _truth(requests: list[list[dict[str, Any]]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as it went: each request's messages behind the last answer, then its answer."""
    log: list[dict[str, Any]] = []
    for request, answer in zip(requests, answers, strict=True):
        behind = max((i for i, m in enumerate(request) if m["role"] == "assistant"), default=-1) + 1
        log += [message for message in request[behind:] if message["role"] != "system"]
        log.append(answer)
    return log


def _form(message: dict[str, Any]) -> tuple[bytes | None, bool]:
    return canonicalize_message(message), ChatMessage.from_body(message).is_in_skeleton


def _whole(message: dict[str, Any]) -> Reply:
    return completion(**{name: value for name, value in message.items() if name != "role"})


def _streamed(message: dict[str, Any]) -> Reply:
    if not message.get("tool_calls"):
        return stream(*str(message["content"]).split(" ", 1)[:1], " ", str(message["content"]).partition(" ")[2])
    reply = stream(message.get("content") or "")
    (made,) = message["tool_calls"]
    function = made["function"]
    opening = {**made, "index": 0, "function": {"name": function["name"], "arguments": ""}}
    pieces = list(reply.pieces or [])
    texts = [function["arguments"][:9], function["arguments"][9:]]
    deltas = [{"tool_calls": [opening]}] + [
        {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in texts
    ]
    finish = pieces.index(next(piece for piece in pieces if b'"stop"' in piece))
    pieces[finish] = pieces[finish].replace(b'"stop"', b'"tool_calls"')
    pieces[finish:finish] = [_delta(delta) for delta in deltas]
    return Reply(pieces=pieces)


def _delta(delta: dict[str, Any]) -> bytes:
    body = {
        "id": "chatcmpl-upstream",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "upstream-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("tail", ["plain", "with more than eight messages"])
async def test_a_history_is_recognised_in_every_shape(
    shape: list[dict[str, Any]],
    tail: str,
) -> None:
    calling, answered, final = shape
    begun = [user("Weather?")]
    if tail != "plain":
        begun = [message for n in range(5) for message in (user(f"Question {n}"), assistant(f"Answer {n}"))]
        begun += [user("Weather?")]
    upstream = ScriptedUpstream(completion(**CALLING), completion(**FINAL), completion("You are welcome."))
    async with world(upstream) as gateway:
        one = await gateway.say(begun)
        two = await gateway.say([*begun, calling, answered])
        three = await gateway.say([*begun, calling, answered, final, user("Thanks")])
        assert one["conversation_id"] == two["conversation_id"] == three["conversation_id"]
        assert len(gateway.conversations()) == 1
        log = await gateway.log(one["conversation_id"])
        assert len(log) == len(begun) + 5
        assert [_form(message) for message in log[-5:-2]] == [_form(message) for message in shape]


async def test_a_client_that_drops_tool_traffic_is_recognised_and_its_history_goes_upstream_as_it_is() -> None:
    upstream = ScriptedUpstream(
        completion(**CALLING), completion(**FINAL), completion(**CALLING), completion("Sunny."), completion("Bye.")
    )
    calling, answered, final = SHAPES["as it was answered"]
    async with world(upstream) as gateway:
        lossy = [user("Weather?"), final, user("And tomorrow?")]
        ids = [
            (await gateway.say([user("Weather?")]))["conversation_id"],
            (await gateway.say([user("Weather?"), calling, answered]))["conversation_id"],
            (await gateway.say(lossy))["conversation_id"],
            (await gateway.say([*lossy, calling, answered]))["conversation_id"],
        ]
        longer = [*lossy, assistant("Sunny."), user("Thanks")]
        ids.append((await gateway.say(longer))["conversation_id"])
        assert len(set(ids)) == 1
        assert upstream.requests[-1]["messages"] == longer
        log = await gateway.log(ids[0])
        roles = [message["role"] for message in log]
        assert roles == ["user", "assistant", "tool", "assistant"] * 2 + ["user", "assistant"]


async def test_equal_first_messages_never_join_conversations() -> None:
    async with world(ScriptedUpstream()) as gateway:
        opening = [system("You are a helpful assistant."), user("Hi")]
        ids = [(await gateway.say(opening))["conversation_id"] for _ in range(120)]
        assert len(set(ids)) == 120
        assert {len(await gateway.log(one)) for one in ids} == {2}


async def test_one_of_many_equal_beginnings_is_continued_once() -> None:
    """All began with the same question and got the same answer: sharing is unavoidable, mixing is not."""
    async with world(ScriptedUpstream()) as gateway:
        for _ in range(5):
            await gateway.say([user("Hi")])
        history = [user("Hi"), assistant("Fine.")]
        one = (await gateway.say([*history, user("I am Ada")]))["conversation_id"]
        two = (await gateway.say([*history, user("I am Bob")]))["conversation_id"]
        assert one != two
        ada = [*history, user("I am Ada"), assistant("Fine."), user("Who am I?")]
        bob = [*history, user("I am Bob"), assistant("Fine."), user("Who am I?")]
        assert (await gateway.say(ada))["conversation_id"] == one
        assert (await gateway.say(bob))["conversation_id"] == two
        assert [m["content"] for m in await gateway.log(one)][2] == "I am Ada"
        assert [m["content"] for m in await gateway.log(two)][2] == "I am Bob"


async def test_a_history_with_foreign_answers_only_is_a_conversation_of_its_own() -> None:
    imported = [user("Hi"), assistant("Hello from elsewhere."), user("Again")]
    async with world(ScriptedUpstream()) as gateway:
        first = (await gateway.say([user("Hi")]))["conversation_id"]
        ids = {(await gateway.say(imported))["conversation_id"] for _ in range(3)}
        assert first not in ids
        assert len(ids) == 3


async def test_an_empty_answer_makes_nobody_elses_history_match() -> None:
    """An empty answer leaves the chain where the question left it; the question alone must not be found by it."""
    async with world(ScriptedUpstream(completion(""), completion("Fine."))) as gateway:
        mine = (await gateway.say([user("Hi")]))["conversation_id"]
        other = [user("Hi"), assistant("An answer from elsewhere."), user("My name is Eve")]
        assert (await gateway.say(other))["conversation_id"] != mine
        assert len(await gateway.log(mine)) == 2


async def test_tenants_with_equal_histories_never_meet() -> None:
    async with world(ScriptedUpstream()) as gateway:
        one = (await gateway.say([user("Hi")], key="sk-one"))["conversation_id"]
        history = [user("Hi"), assistant("Fine."), user("Go on")]
        two = (await gateway.say(history, key="sk-two"))["conversation_id"]
        assert (await gateway.say(history, key="sk-one"))["conversation_id"] == one
        assert two != one
        assert (await gateway.post([user("x")], key="sk-two", conversation_id=one)).status_code == 404


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("turns", [1, 3, 8, 40])
async def test_a_system_prompt_with_the_time_in_it_does_not_break_recognition(
    turns: int,
    role: str,
) -> None:
    history: list[dict[str, Any]] = []
    async with world(ScriptedUpstream()) as gateway:
        ids = set()
        for turn in range(turns + 1):
            history.append(user(f"Question {turn}"))
            clock = {"role": role, "content": f"It is {turn} o'clock."}
            ids.add((await gateway.say([clock, *history]))["conversation_id"])
            history.append(assistant("Fine."))
        assert len(ids) == 1
        assert len(gateway.conversations()) == 1
        assert len(await gateway.log(ids.pop())) == 2 * (turns + 1)
        assert gateway.upstream.requests[-1]["messages"][0]["content"] == f"It is {turns} o'clock."


async def test_system_messages_inside_a_history_may_change_or_vanish() -> None:
    async with world(ScriptedUpstream()) as gateway:
        begun = [user("Hi"), assistant("Fine.")]
        first = (await gateway.say(begun[:1]))["conversation_id"]
        reminded = [*begun, system("Reminder 1"), user("Next")]
        assert (await gateway.say(reminded))["conversation_id"] == first
        answered = [*begun, system("Reminder 2"), user("Next"), assistant("Fine."), user("More")]
        assert (await gateway.say(answered))["conversation_id"] == first
        assert gateway.upstream.requests[-1]["messages"] == answered
        without = [*begun, user("Next"), assistant("Fine."), user("More"), assistant("Fine."), user("End")]
        assert (await gateway.say(without))["conversation_id"] == first
        assert gateway.upstream.requests[-1]["messages"] == without
        assert len(gateway.conversations()) == 1
        asked = [m["content"] for m in await gateway.log(first) if m["role"] == "user"]
        assert asked == ["Hi", "Next", "More", "End"]


async def test_an_edit_behind_a_system_message_is_an_aligned_branch() -> None:
    async with world(ScriptedUpstream()) as gateway:
        begun = [user("Hi"), assistant("Fine.")]
        await gateway.say(begun[:1])
        first = (await gateway.say([*begun, system("Reminder"), user("Next")]))["conversation_id"]
        edited = (await gateway.say([*begun, user("Instead")]))["conversation_id"]
        assert edited != first
        assert [m["content"] for m in await gateway.log(edited)] == ["Hi", "Fine.", "Instead", "Fine."]
        again = (await gateway.say([*begun, system("Reminder"), user("Instead, reminded")]))["conversation_id"]
        roles = [m["role"] for m in await gateway.log(again)]
        assert roles == ["user", "assistant", "system", "user", "assistant"]


async def test_empty_assistant_messages_do_not_break_recognition() -> None:
    replies = [completion("Fine."), completion(""), completion("Back.")]
    async with world(ScriptedUpstream(*replies)) as gateway:
        history: Messages = [user("Hi"), assistant("Fine."), user("Say nothing"), assistant(""), user("And now?")]
        first = (await gateway.say(history[:1]))["conversation_id"]
        assert (await gateway.say(history[:3]))["conversation_id"] == first
        assert (await gateway.say(history))["conversation_id"] == first
        without = [message for message in history if message["content"] != ""]
        longer = [*without, assistant("Back."), user("Good")]
        assert (await gateway.say(longer))["conversation_id"] == first
        assert len(await gateway.log(first)) == 8
        assert len(gateway.conversations()) == 1


async def test_a_history_that_begins_with_a_greeting_of_the_assistant_is_recognised() -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = [system("Be kind."), assistant("How can I help?"), user("Hi")]
        first = (await gateway.say(history))["conversation_id"]
        assert (await gateway.say([*history, assistant("Fine."), user("Bye")]))["conversation_id"] == first
        assert (await gateway.say(history))["conversation_id"] != first


async def test_a_client_that_reshapes_every_answer_stores_its_history_once() -> None:
    turns = 12
    async with world(ScriptedUpstream()) as w:
        history = [user("Question 0")]
        for turn in range(turns):
            await w.say(history)
            history += [assistant(f"Reworded {turn}"), user(f"Question {turn + 1}")]
        assert len(w.conversations()) == turns, "a branch for each answer that was not ours"
        whole_each_turn = sum(2 * (turn + 1) for turn in range(turns))
        assert w.rows() < whole_each_turn / 2, "what branches share is not stored again"
        assert await w.log(w.conversations()[-1].id) == [*history[:-2], {"role": "assistant", "content": "Fine."}]


async def test_a_question_is_not_stored_twice_where_the_store_is_slow() -> None:
    class Slow(MemoryStore):
        async def get(self, *, tenant: str, conversation_id: str) -> Conversation | None:
            await asyncio.sleep(0.03)
            return await super().find_conversation(tenant=tenant, conversation_id=conversation_id)

    store = Slow(clock=lambda: datetime.now(UTC))
    async with world(ScriptedUpstream(), store=store) as w:
        history = [system("Be brief."), user("Question 0")]
        for turn in range(3):
            body = await w.say(history, conversation="c")
            history += [assistant(body["choices"][0]["message"]["content"]), user(f"Question {turn + 1}")]
        assert len(w.conversations()) == 1
        assert w.rows() == 6
