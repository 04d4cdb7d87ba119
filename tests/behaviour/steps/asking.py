"""When …: the user says something, and the conversation grows."""

from __future__ import annotations

import asyncio
from typing import Any

from pytest_bdd import given, when

from tests.behaviour.steps.words import Table, nested, step
from tests.behaviour.talk import MOST_TURNS, Talk
from tests.behaviour.texts import message, text, weight


@given(step('the user has said "{text}"'))
@when(step('the user says "{text}"'))
def _(talk: Talk, text: str) -> None:
    talk.say({"role": "user", "content": text})


@given(step("the user has said something of {tokens:N} tokens"))
@when(step("the user says something of {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.say(talk.user(tokens))


@when(step('the user says "{text}" and reads the answer as it comes'))
def _(talk: Talk, text: str) -> None:
    talk.say({"role": "user", "content": text}, stream=True)


@when(step('the user says "{said}" with:'))
def _(talk: Talk, said: str, datatable: Table) -> None:
    talk.say({"role": "user", "content": said}, **nested(datatable))


@when(step('the user asks the model "{name}"'))
def _(talk: Talk, name: str) -> None:
    talk.asks_for = name
    talk.say(talk.user(40))


@given(step("the conversation has gone on for {turns:N} turns of {tokens:N} tokens"))
@when(step("the conversation goes on for {turns:N} turns of {tokens:N} tokens"))
def _(talk: Talk, turns: int, tokens: int) -> None:
    for _turn in range(turns):
        _take_turn(talk, tokens)


@given(step("the conversation has grown to {tokens:N} tokens"))
@when(step("the conversation has grown to {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.grow_to(tokens)


@given(step("the conversation has been summarized {times:N} times, by turns of {tokens:N} tokens"))
@when(step("the conversation goes on by turns of {tokens:N} tokens until it has been summarized {times:N} times"))
def _(talk: Talk, tokens: int, times: int) -> None:
    for _turn in range(MOST_TURNS):
        if sum(answer.context["compaction"]["ran"] for answer in talk.answers) >= times:
            return
        _take_turn(talk, tokens)
    raise AssertionError("it was not")


@when(step("the conversation goes on by turns of {tokens:N} tokens until summaries are folded"))
def _(talk: Talk, tokens: int) -> None:
    for _turn in range(MOST_TURNS):
        _take_turn(talk, tokens)
        if any(chunk.folds for chunk in talk.chunks()):
            return
    raise AssertionError("they were not")


def _take_turn(talk: Talk, tokens: int) -> None:
    """A turn that weighs so much together with its answer."""
    talk.say(talk.user(tokens - weight([{"role": "assistant", "content": talk.model.answers}]) + weight([])))


@given(step("a conversation of {turns:N} turns of {tokens:N} tokens, which the gateway has not seen yet"))
def _(talk: Talk, turns: int, tokens: int) -> None:
    _bring(talk, turns, tokens)


@when(step("the user brings a new conversation that weighs {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    _bring_new(talk, tokens)


@when(step("the user brings a new conversation that weighs {tokens:N} tokens, with:"))
def _(talk: Talk, tokens: int, datatable: Table) -> None:
    _bring_new(talk, tokens, **nested(datatable))


def _bring_new(talk: Talk, tokens: int, **fields: Any) -> None:
    talk.messages = []
    step_tokens = tokens // 20
    _bring(talk, (tokens - talk.tokens) // step_tokens - 1, step_tokens)
    talk.say(talk.user(tokens - talk.tokens), **fields)


def _bring(talk: Talk, turns: int, tokens: int) -> None:
    """A history of turns, each beginning with its number; half of each is the user's."""
    asked = max(tokens // 2, tokens - 24)
    for _turn in range(turns):
        number = len(talk.turns) + 1
        talk.messages.append(message("user", asked, f"Turn {number}:"))
        talk.messages.append(message("assistant", tokens - asked, f"Answer {number}:"))


@when(step("two requests of {tokens:N} tokens are made at the same time"))
def _(talk: Talk, tokens: int) -> None:
    first, second = talk.user(tokens), {**talk.user(tokens), "content": text(tokens - 4, "Meanwhile:")}

    async def both() -> None:
        talk.answers += await asyncio.gather(talk.ask([first]), talk.ask([second]))

    talk.run(both())


@given("the gateway is restarted")
@when("the gateway is restarted")
def _(talk: Talk) -> None:
    talk.stop()


@when(step("the user says less, in {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.messages.pop()
    talk.say(talk.user(tokens))
