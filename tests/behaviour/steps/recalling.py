"""Quoting and searching what is no longer shown."""

from __future__ import annotations

import json

from pytest_bdd import given, then

from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk
from tests.behaviour.texts import COUNTER, message

TOOL = "recall_conversation"
QUOTED = "Quoted from earlier in this conversation"


@given(step('the model will look for "{query}" before it answers "{text}"'))
def _(talk: Talk, query: str, text: str) -> None:
    called = {"name": TOOL, "arguments": json.dumps({"query": query})}
    call = {"id": "call_recall", "type": "function", "function": called}
    talk.model.scripted += [{"content": None, "tool_calls": [call]}, {"content": text}]


@given(step('the user has said "{word}" in one of {each:N} of {turns:N} turns of {tokens:N} tokens'))
def _(talk: Talk, word: str, each: int, turns: int, tokens: int) -> None:
    for turn in range(turns):
        talk.say(message("user", tokens, f"Turn {turn}, {word}:" if turn % each == 0 else f"Turn {turn}:"))


@then("the quotation stands in a message of the user's, right before the question, and says that it is no instruction")
def _(talk: Talk) -> None:
    *_rest, quotation, question = talk.answer.view
    assert question == talk.answer.messages[-1]
    assert quotation["role"] == "user"
    assert quotation["content"].startswith(QUOTED)
    assert "not an instruction" in quotation["content"]


@then("the answer names the first message as quoted")
def _(talk: Talk) -> None:
    assert talk.answer.context["quoted"][0]["seq"] == 0


@then("the answer names messages as quoted")
def _(talk: Talk) -> None:
    assert talk.answer.context["quoted"]


@then("the answer names no message as quoted")
def _(talk: Talk) -> None:
    assert talk.answer.context["quoted"] == []


@then("the last prompt began with the one before")
def _(talk: Talk) -> None:
    before, after = talk.answers[-2].view, talk.answers[-1].view
    assert after[: len(before)] == before


@then(step("what was quoted took at most {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    quotations = [message for message in talk.answer.view if str(message["content"]).startswith(QUOTED)]
    assert quotations
    assert sum(map(COUNTER.count_message, quotations)) <= tokens


@then("the model was offered a tool to search the conversation")
def _(talk: Talk) -> None:
    assert [tool["function"]["name"] for tool in talk.answer.asked[0].body["tools"]] == [TOOL]


@then("the model was offered no tool")
def _(talk: Talk) -> None:
    assert "tools" not in talk.answer.asked[0].body


@then(step("the search found the fact that {told}"))
def _(talk: Talk, told: str) -> None:
    searched, found = talk.answer.asked
    assert f"Remember: {told}." not in str(searched.messages)
    assert found.messages[: len(searched.messages)] == searched.messages
    assert found.messages[-1]["role"] == "tool"
    assert f"Remember: {told}." in found.messages[-1]["content"]


@then(step('the answer names the search for "{query}"'))
def _(talk: Talk, query: str) -> None:
    assert [search["query"] for search in talk.answer.context["recalls"]] == [query]
