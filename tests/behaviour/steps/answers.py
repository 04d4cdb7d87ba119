"""Then …: what an answer says of itself."""

from __future__ import annotations

import re

import pytest
from pytest_bdd import then

from app.settings.configuration_errors import ConfigurationError
from tests.behaviour.steps.words import Table, step, value
from tests.behaviour.talk import Answer, Talk
from tests.behaviour.texts import COUNTER


@then(step('the answer says "{status}"'))
def _(talk: Talk, status: str) -> None:
    assert talk.answer.status == 200, talk.answer.body
    assert (talk.answer.said, talk.answer.headers["x-context-status"]) == (status, status)


@then(step('every answer said "{status}"'))
def _(talk: Talk, status: str) -> None:
    assert {answer.said for answer in talk.answers} == {status}


@then(step('the last answer but one said "{status}"'))
def _(talk: Talk, status: str) -> None:
    assert talk.answers[-2].said == status


@then("its context says:")
def _(talk: Talk, datatable: Table) -> None:
    assert {name: talk.answer.context[name] for name, _ in datatable} == {name: value(cell) for name, cell in datatable}


@then(step("the provider was asked for at most {tokens:N} tokens with {field}"))
def _(talk: Talk, tokens: int, field: str) -> None:
    asked = {name: size for name, size in talk.model.calls[-1].body.items() if name.startswith("max_")}
    assert asked == {field: tokens}


@then(step("its header X-Context-Tokens says {used:N}/{limit:N}"))
def _(talk: Talk, used: int, limit: int) -> None:
    assert talk.answer.headers["x-context-tokens"] == f"{used}/{limit}"


@then(step("its estimate is within {percent:N} % of what the provider counted"))
def _(talk: Talk, percent: int) -> None:
    assert talk.answer.context["prompt_tokens"] == pytest.approx(counted(talk.answer), rel=percent / 100)


@then(step("every estimate was within {percent:N} % of what the provider counted"))
def _(talk: Talk, percent: int) -> None:
    for answer in talk.answers:
        assert answer.context["prompt_tokens"] == pytest.approx(counted(answer), rel=percent / 100)


@then(step("its estimate is {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert talk.answer.context["prompt_tokens"] == tokens


def counted(answer: Answer) -> int:
    return answer.asked[-1].prompt_tokens


@then("the answer tells that half of its input was read from the cache")
def _(talk: Talk) -> None:
    told = talk.answer.context["calibration"]
    assert told["reported_tokens"] == counted(talk.answer)
    assert told["cached_tokens"] == pytest.approx(told["reported_tokens"] / 2, abs=1)


@then(step("the slope is {slope:N}"))
def _(talk: Talk, slope: float) -> None:
    assert talk.answer.context["calibration"]["slope"] == slope


@then("every request was answered")
def _(talk: Talk) -> None:
    assert {answer.status for answer in talk.answers} == {200}


@then(step("the request is refused with {status:N} and the code {code}"))
def _(talk: Talk, status: int, code: str) -> None:
    assert (talk.answer.status, talk.answer.body["error"]["code"]) == (status, code)


@then(step('the refusal mentions "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text in talk.answer.body["error"]["message"]


@then("the answers all name the same conversation")
def _(talk: Talk) -> None:
    assert len({answer.body["conversation_id"] for answer in talk.answers}) == 1
    assert len({answer.headers["x-conversation-id"] for answer in talk.answers}) == 1


@then("it was made within the same request, after the model had refused")
def _(talk: Talk) -> None:
    assert talk.answer.context["recovered"] is True


@then(step("the stream began by saying that a summary is being made, of {tokens:N} tokens in a window of {window:N}"))
def _(talk: Talk, tokens: int, window: int) -> None:
    event = talk.answer.events[0]["context_event"]
    assert event == {"type": "compaction_started", "input_tokens": tokens, "context_window": window}


@then("it then said that the summary is there, and how long it took")
def _(talk: Talk) -> None:
    told = [event["context_event"] for event in talk.answer.events if "context_event" in event]
    assert [event["type"] for event in told] == ["compaction_started", "compaction_completed"]
    assert told[1]["duration_ms"] >= 0


@then(step('the answer warns of "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert any(re.search(text, warning) for warning in talk.answer.context["warnings"])


@then("the answer warns of nothing")
def _(talk: Talk) -> None:
    assert talk.answer.context["warnings"] == []


@then(step('the answer reads "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert talk.messages[-1]["content"] == text


@then(step("the estimate is {times:N} times what we count ourselves"))
def _(talk: Talk, times: int) -> None:
    own = COUNTER.count_request(talk.answer.view, tools=talk.tools)
    assert talk.answer.context["prompt_tokens"] == pytest.approx(own * times, rel=0.01)


@then(step('the gateway does not start, and names "{path}"'))
def _(talk: Talk, path: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(path)):
        talk.say(talk.user(40))
