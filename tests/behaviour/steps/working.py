"""Given and when …: an agent at work, calls of tools and their results."""

from __future__ import annotations

import json
from typing import Any

from pytest_bdd import given, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk
from tests.behaviour.texts import COUNTER, message

NO_WORD: Body = {"role": "assistant", "content": ""}
"""An answer without text: the model has read the results before it, and no answer has used them."""


@given(step("{turns:N} turns, each with a tool result of {tokens:N} tokens, which the gateway has not seen yet"))
def _(talk: Talk, turns: int, tokens: int) -> None:
    for _turn in range(turns):
        start_turn(talk)
        call_and_result(talk, tokens)
        end_turn(talk)


@given(step('a turn with a call of "{name}" and a result of {tokens:N} tokens, which the gateway has not seen yet'))
def _(talk: Talk, name: str, tokens: int) -> None:
    start_turn(talk)
    call_and_result(talk, tokens, name=name)
    end_turn(talk)


@given(step('a turn with a call of "{name}" that ended in "{result}", which the gateway has not seen yet'))
def _(talk: Talk, name: str, result: str) -> None:
    start_turn(talk)
    call_and_result(talk, 0, name=name, result=result)
    end_turn(talk)


@given(
    step("a turn with {calls:N} calls one after the other, each with a result of {tokens:N} tokens, not yet answered")
)
def _(talk: Talk, calls: int, tokens: int) -> None:
    start_turn(talk)
    for _call in range(calls):
        call_and_result(talk, tokens)


@given(step("a turn with a call whose arguments have {chars:N} characters, which the gateway has not seen yet"))
def _(talk: Talk, chars: int) -> None:
    start_turn(talk)
    call_and_result(talk, 40, arguments={"query": "lamp " * (chars // 5), "limit": 5})
    end_turn(talk)


@given(step("results of {tokens:N} tokens that were asked for at once, {calls:N} of them, not yet answered"))
def _(talk: Talk, tokens: int, calls: int) -> None:
    start_turn(talk)
    first = len(results(talk.messages)) + 1
    numbers = range(first, first + calls)
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": [_call("look_up", n) for n in numbers]})
    talk.messages += [_result(number, tokens) for number in numbers]


@when("the model goes on from the last result")
def _(talk: Talk) -> None:
    talk.say([])


@when("the user goes on, though the model said nothing to the last result")
def _(talk: Talk) -> None:
    talk.say([dict(NO_WORD), talk.user(24)])


@when(step("the user says so much that the conversation weighs {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.say(talk.user(tokens - talk.tokens))


@when(step("the user goes on after a read result with which the conversation weighs {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    number = len(results(talk.messages)) + 1
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": [_call("look_up", number)]})
    after = [dict(NO_WORD), talk.user(24)]
    talk.say([_result(number, tokens - talk.tokens - sum(map(COUNTER.count_message, after))), *after])


@when(step("the agent works through {calls:N} calls with results of {tokens:N} tokens each"))
def _(talk: Talk, calls: int, tokens: int) -> None:
    first = len(results(talk.messages)) + 1
    for number in range(first, first + calls):
        talk.model.scripted.append({"content": None, "tool_calls": [_call("look_up", number)]})
        talk.say(_result(number - 1, tokens) if number > first else talk.user(40))
    talk.say(_result(first + calls - 1, tokens))


def start_turn(talk: Talk) -> None:
    talk.messages.append(talk.user(24))


def end_turn(talk: Talk) -> None:
    talk.messages.append(message("assistant", 24, f"Answer {len(talk.turns)}:"))


def call_and_result(
    talk: Talk, tokens: int, *, name: str = "look_up", result: str = "", arguments: Body | None = None
) -> None:
    number = len(results(talk.messages)) + 1
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": [_call(name, number, arguments)]})
    given_back = _result(number, tokens) if not result else {**_result(number, 40), "content": result}
    talk.messages.append(given_back)


def _call(name: str, number: int, arguments: Body | None = None) -> Body:
    written = json.dumps({"query": f"lamp {number}"} if arguments is None else arguments)
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}}


def _result(number: int, tokens: int) -> Body:
    return message("tool", tokens, f"Result {number}:", tool_call_id=f"call_{number}")


@when(step("the user goes on after a read result of {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    start_turn(talk)
    call_and_result(talk, tokens)
    talk.say([dict(NO_WORD), talk.user(24)])


@given(step("{turns:N} turns whose answers carry {tokens:N} tokens of reasoning, which the gateway has not seen yet"))
def _(talk: Talk, turns: int, tokens: int) -> None:
    for _turn in range(turns):
        start_turn(talk)
        thought: Any = message("user", tokens, f"Thought {len(talk.turns)}:")["content"]
        end_turn(talk)
        talk.messages[-1]["reasoning_content"] = thought


def results(messages: list[Body]) -> list[Body]:
    return [entry for entry in messages if entry["role"] == "tool"]
