"""Facts told along the way, and whether they are still in front of the model when they are asked for."""

from __future__ import annotations

from itertools import pairwise

from pytest_bdd import given, then, when

from tests.behaviour.steps.showing import shown_text
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Answer, Talk
from tests.behaviour.texts import message

_TOPICS = ("boats", "bread", "clocks", "drums", "gardens", "horses", "kites", "lamps", "maps", "roofs")
_LIKES = ("old", "new", "large", "small", "quiet")


def fact(topic: int, question: int) -> str:
    return (
        f"Remember: about {_TOPICS[topic]} we said that {_LIKES[question % 5]} ones come in kind {'abcde'[question]}."
    )


@given(step("the user has told the fact that {told}, among {tokens:N} tokens"))
@when(step("the user tells the fact that {told}, among {tokens:N} tokens"))
def _(talk: Talk, told: str, tokens: int) -> None:
    talk.say(message("user", tokens, f"Remember: {told}. And besides:"))


@then(step("the model saw the fact that {told}"))
def _(talk: Talk, told: str) -> None:
    assert f"Remember: {told}." in shown_text(talk.answer)


@then(step("the model did not see the fact that {told}"))
def _(talk: Talk, told: str) -> None:
    assert f"Remember: {told}." not in shown_text(talk.answer)


@given(step("the user has told a fact in each of {questions:N} questions of {tokens:N} tokens, over {topics:N} topics"))
@when(step("the user tells a fact in each of {questions:N} questions of {tokens:N} tokens, over {topics:N} topics"))
def _(talk: Talk, questions: int, tokens: int, topics: int) -> None:
    each = questions // topics
    for at in range(questions):
        talk.say(message("user", tokens, f"{fact(at // each, at % each)} And besides:"))


@then("at the probes in turns 11, 21, 31, 41, 46 and 50 the model saw every fact told so far")
def _(talk: Talk) -> None:
    for turn in (11, 21, 31, 41, 46, 50):
        assert lost(talk.answers[turn - 1], turn) == []


@then(step("in turn {turn:N} the facts of the first topic were lost"))
def _(talk: Talk, turn: int) -> None:
    assert set(lost(talk.answers[turn - 1], turn)) >= {fact(0, question) for question in range(5)}


def lost(answer: Answer, turn: int) -> list[str]:
    """Facts told until then that the model was not shown."""
    shown = shown_text(answer)
    return [told for told in (fact(at // 5, at % 5) for at in range(turn)) if told not in shown]


@then(step("the conversation was summarized at least {times:N} times"))
def _(talk: Talk, times: int) -> None:
    assert len(_baselines(talk)) >= times


@then("each summary made the prompt that followed it grow by no more than twice what another did")
def _(talk: Talk) -> None:
    steps = [after - before for before, after in pairwise(_baselines(talk))]
    assert min(steps) > 0
    assert max(steps) <= 2 * min(steps)


def _baselines(talk: Talk) -> list[int]:
    """What was sent in each turn that summarized."""
    return [answer.asked[-1].prompt_tokens for answer in talk.answers if answer.context["compaction"]["ran"]]
