"""Answers that come back changed: cut short, another of several choices, or joined with the beginning that they had."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import assistant, texts, user, world

LONG = (
    "The parcel left the depot in Turin on Tuesday at 6:14 and is expected in Lyon on Thursday, with a note for the "
    "porter of the house."
)
OTHER = (
    "Nobody has seen the parcel since Tuesday, when it was loaded in Turin; the driver says that it is not on his "
    "list, and never was."
)


def answer_to(body: dict[str, Any]) -> Reply:
    """An answer that nobody else gets."""
    return completion(f"To the {len(body['messages'])} messages that there are by now: {LONG}")


def two_choices(body: dict[str, Any]) -> Reply:
    answer = completion(LONG)
    if body.get("n") == 2:
        first = answer.body["choices"][0]
        other = {**first, "index": 1, "message": {**first["message"], "content": OTHER}}
        return Reply(body={**answer.body, "choices": [first, other]})
    return completion("Noted.")


@pytest.mark.parametrize("earlier", [0, 1])
async def test_an_answer_that_came_back_cut_short_goes_on_in_its_conversation(earlier: int) -> None:
    async with world(ScriptedUpstream(default=answer_to)) as gateway:
        history = [user("Hello")]
        for _ in range(earlier):
            history += [(await gateway.say(history))["choices"][0]["message"], user("And now?")]
        body = await gateway.say(history)
        ours, whole = body["conversation_id"], body["choices"][0]["message"]["content"]
        history += [assistant(whole[:110]), user("Go on.")]
        body = await gateway.say(history)
        assert body["conversation_id"] == ours
        assert texts(await gateway.log(ours))[-3:-1] == [whole, "Go on."]
        assert texts(gateway.upstream.requests[-1]["messages"]) == texts(history)
        history += [body["choices"][0]["message"], user("And then?")]
        assert (await gateway.say(history))["conversation_id"] == ours


async def test_another_choice_goes_on_in_its_conversation() -> None:
    async with world(ScriptedUpstream(default=two_choices)) as gateway:
        history = [user("Where is it?")]
        ours = (await gateway.say(history, n=2))["conversation_id"]
        history += [assistant(OTHER), user("Who drove?")]
        assert (await gateway.say(history))["conversation_id"] == ours
        assert gateway.upstream.requests[-1]["messages"] == history
        assert texts(await gateway.log(ours)) == ["Where is it?", LONG, "Who drove?", "Noted."]


async def test_a_prefill_that_comes_back_joined_with_its_answer_is_recognised() -> None:
    async with world(ScriptedUpstream(default=lambda _: completion(LONG))) as gateway:
        begin = "Dear customer, "
        ours = (await gateway.say([user("Write to me"), assistant(begin)]))["conversation_id"]
        history = [user("Write to me"), assistant(begin + LONG), user("Shorter")]
        assert (await gateway.say(history))["conversation_id"] == ours
        assert gateway.upstream.requests[-1]["messages"] == history
        assert texts(await gateway.log(ours)) == ["Write to me", begin, LONG, "Shorter", LONG]


async def test_an_answer_that_somebody_else_gave_begins_a_conversation() -> None:
    async with world(ScriptedUpstream(default=lambda _: completion(LONG))) as gateway:
        ours = (await gateway.say([user("Hello")]))["conversation_id"]
        body = await gateway.say([user("Hello"), assistant(OTHER), user("Go on.")])
        assert body["conversation_id"] != ours
