"""Messages that a client pins."""

from __future__ import annotations

from pytest_bdd import then, when

from tests.behaviour.steps.words import step
from tests.behaviour.steps.working import results
from tests.behaviour.talk import Talk


@when(step('the user says "{text}" and pins it'))
def _(talk: Talk, text: str) -> None:
    talk.say({"role": "user", "content": text}, context={"pin": [len(talk.instructions) + len(talk.messages)]})


@when(step('the user says "{text}" and pins message {index:N}'))
def _(talk: Talk, text: str, index: int) -> None:
    talk.say({"role": "user", "content": text}, context={"pin": [index]})


@then(step('the model saw the message "{text}" word for word'))
def _(talk: Talk, text: str) -> None:
    assert {"role": "user", "content": text} in talk.answer.view


@then("the model saw the last result whole, behind its call")
def _(talk: Talk) -> None:
    (result,) = results(talk.answer.view)
    assert result in talk.messages
    before = talk.answer.view[talk.answer.view.index(result) - 1]
    assert [call["id"] for call in before["tool_calls"]] == [result["tool_call_id"]]
