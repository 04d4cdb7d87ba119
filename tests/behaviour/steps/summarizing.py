"""Given and then …: calls for summaries, and how they fail."""

from __future__ import annotations

from pytest_bdd import given, then, when

from tests.behaviour.model import SUMMARY_RULE, Call
from tests.behaviour.steps.words import Table, step
from tests.behaviour.talk import MODEL, Talk
from tests.behaviour.texts import message
from tests.live import Reply, completion

FAILURES = {
    "an error": Reply({"error": {"message": "Overheated.", "type": "server_error", "param": None, "code": None}}, 500),
    "nothing": completion(""),
    "nonsense": Reply(b"<html>Bad gateway</html>", 200),
    "a tool call": completion(
        None, tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
    ),
}


@given(step("whoever is asked for a summary answers with {failure}"))
@when(step("whoever is asked for a summary answers with {failure}"))
def _(talk: Talk, failure: str) -> None:
    for name in (MODEL, *talk.model.windows):
        talk.model.failing_summaries[name] = FAILURES[failure]


@given(step('the model "{name}" answers with {failure} when it is asked for a summary'))
def _(talk: Talk, name: str, failure: str) -> None:
    talk.model.failing_summaries[name] = FAILURES[failure]


@given(step("the user has booked {flights:N} flights, each in a turn of {tokens:N} tokens"))
def _(talk: Talk, flights: int, tokens: int) -> None:
    for number in range(flights):
        talk.say(message("user", tokens, f"Book {flight(number)}, please."))


@given(step("the first summary names {first:N} of the flights, and the one that is asked for again {second:N}"))
def _(talk: Talk, first: int, second: int) -> None:
    for opening, named in (("The first", first), ("The second", second)):
        flights = "; ".join(flight(number) for number in range(named))
        talk.model.scripted_summaries.append(f"{opening} summary: they booked {flights}.")


@then(step("the {which} summary is the one that is kept"))
def _(talk: Talk, which: str) -> None:
    assert len(talk.model.summaries_asked) == 2
    (chunk,) = talk.chunks()
    assert chunk.text.startswith(f"The {which} summary: ")


def flight(number: int) -> str:
    """Values that a summary should keep."""
    return f"FL{number}QA for mia_kim_{1000 + number} as RES{number}XQ"


@when("summaries can be had again")
def _(talk: Talk) -> None:
    talk.model.failing_summaries.clear()


@then("no summary was asked for")
def _(talk: Talk) -> None:
    assert talk.answer.summaries_asked == []


@then("no summary was ever asked for")
def _(talk: Talk) -> None:
    assert talk.model.summaries_asked == []


@then("one summary was asked for")
def _(talk: Talk) -> None:
    assert len(talk.model.summaries_asked) == 1


@then(step("{count:N} summaries were asked for"))
def _(talk: Talk, count: int) -> None:
    assert len(talk.model.summaries_asked) == count


@then(step('the model "{name}" was asked for the summary'))
def _(talk: Talk, name: str) -> None:
    assert [call.body["model"] for call in talk.model.summaries_asked] == [name]


@then(step("a summary was asked for of at most {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert {call.body["max_tokens"] for call in talk.model.summaries_asked} == {tokens}


@then("whoever writes the summary is told:")
def _(talk: Talk, datatable: Table) -> None:
    told = instruction(talk.model.summaries_asked[-1])
    assert [cell for (cell,) in datatable if cell not in told] == []


@then(step('whoever writes the summary is told "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text in instruction(talk.model.summaries_asked[-1])


@then(step('whoever writes the summary is not told "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text not in instruction(talk.model.summaries_asked[-1])


@then(step("each call for a summary took at most {tokens:N} tokens, its answer included"))
def _(talk: Talk, tokens: int) -> None:
    assert talk.model.summaries_asked
    for call in talk.model.summaries_asked:
        assert call.prompt_tokens + call.body["max_tokens"] <= tokens


def instruction(call: Call) -> str:
    return next(str(message["content"]) for message in reversed(call.messages) if SUMMARY_RULE in str(message))


@then("whoever wrote the summary read the instructions and the conversation as they are, with the tools bound to it")
def _(talk: Talk) -> None:
    (call,) = talk.model.summaries_asked
    *read, told = call.messages
    assert told["role"] == "user"
    assert read[: len(talk.instructions)] == talk.instructions
    said = read[len(talk.instructions) :]
    assert said == talk.answer.messages[: len(said)]
    assert len(said) > len(talk.answer.messages) - 7
    assert (call.body["tools"], call.body["tool_choice"]) == (talk.tools, "none")


@then("the summary was asked for with the first messages of the prompt before, byte for byte")
def _(talk: Talk) -> None:
    *read, _ = talk.model.summaries_asked[0].messages
    before = talk.answers[-2].view
    assert read[: len(before)] == before[: len(read)]
    assert len(read) > 30


@then(step('whoever wrote the last summary read "{text}" in the conversation itself'))
def _(talk: Talk, text: str) -> None:
    call = talk.model.summaries_asked[-1]
    assert any(text in str(message["content"]) for message in call.messages)
    assert "<earlier_conversation" not in str(call.messages)


@then(step('the models "{names}" were asked for the summary in this order'))
def _(talk: Talk, names: str) -> None:
    asked = [call.body["model"] for call in talk.model.summaries_asked]
    assert list(dict.fromkeys(asked)) == names.split(", ")


@then("the model was asked 3 times for the answer, and for a summary only after the second")
def _(talk: Talk) -> None:
    order = [call.is_summary for call in talk.model.calls]
    assert order[:2] == [False, False]
    assert order[-1] is False
    assert order.count(False) == 3
    assert True in order


@given("the provider reports half of its count as read from its cache")
def _(talk: Talk) -> None:
    talk.model.cached_share = 0.5
