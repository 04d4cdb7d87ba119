"""What happens between two requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pytest_bdd import given, then, when

from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk

LONGEST_SECONDS = 10.0
AWHILE_SECONDS = 0.1
STEP_SECONDS = 0.005


@when("the gateway has had time")
@given("the gateway has had time")
def _(talk: Talk) -> None:
    talk.run(asyncio.sleep(AWHILE_SECONDS))


@when("the gateway has prepared a summary")
@given("the gateway has prepared a summary")
def _(talk: Talk) -> None:
    wait_until(talk, lambda: bool(talk.chunks()))


@when("the gateway has replaced the summary that was made without a model")
def _(talk: Talk) -> None:
    wait_until(talk, lambda: all(chunk.kind == "model" for chunk in talk.chunks()))


@when(step("the user says something of {tokens:N} tokens and reads the answer as it comes"))
def _(talk: Talk, tokens: int) -> None:
    talk.say(talk.user(tokens), stream=True)


@then("the stream never said that a summary is being made")
def _(talk: Talk) -> None:
    assert talk.answer.events
    assert not any("context_event" in event for event in talk.answer.events)


@then("its context does not say that a summary was made")
def _(talk: Talk) -> None:
    assert talk.answer.context["compaction"]["ran"] is False
    assert talk.answer.context["summaries"]


def wait_until(talk: Talk, holds: Callable[[], bool]) -> None:
    for _ in range(int(LONGEST_SECONDS / STEP_SECONDS)):
        if holds():
            return
        talk.run(asyncio.sleep(STEP_SECONDS))
    raise TimeoutError("it does not come to hold")
