"""Then …: what the model was shown."""

from __future__ import annotations

from itertools import pairwise

from pytest_bdd import then

from tests.behaviour.model import Body
from tests.behaviour.steps.words import Table, step
from tests.behaviour.talk import Answer, Talk, turns_of

SECTION = "<earlier_conversation through_turn="
USER_TEXT = "<user_said>"
NOTICE = "earlier messages of this conversation are not shown.]"


@then("the model saw the whole conversation word for word")
def _(talk: Talk) -> None:
    assert talk.answer.view == [*talk.instructions, *talk.answer.messages]


@then("the model always saw the whole conversation word for word")
def _(talk: Talk) -> None:
    for answer in talk.answers:
        assert answer.view == [*talk.instructions, *answer.messages]


@then(step("the model saw the last {turns:N} turns word for word, the new message, and nothing else but summaries"))
def _(talk: Talk, turns: int) -> None:
    assert rest(talk, talk.answer) == newest(talk.answer, turns + 1)


@then(step("the model saw the last {turns:N} turns word for word, the new message, and nothing else"))
def _(talk: Talk, turns: int) -> None:
    assert rest(talk, talk.answer) == newest(talk.answer, turns + 1)
    assert sections(talk.answer) == []


@then("the model saw the instructions, the summaries, the newest turns and the new message, in this order")
def _(talk: Talk) -> None:
    shown = rest(talk, talk.answer)
    assert shown == talk.answer.messages[-len(shown) :]
    assert len(shown) >= 3
    assert sections(talk.answer)


@then(step("the model saw {count:N} summaries"))
def _(talk: Talk, count: int) -> None:
    assert len(sections(talk.answer)) == count == len(talk.answer.context["summaries"])


@then("the model saw one summary")
def _(talk: Talk) -> None:
    assert len(sections(talk.answer)) == 1


@then("the summaries stand in one message of the user's")
def _(talk: Talk) -> None:
    holding = [message for message in talk.answer.view if SECTION in str(message["content"])]
    assert [message["role"] for message in holding] == ["user"]


@then("the first summary reads as it did when it was new")
def _(talk: Talk) -> None:
    new = next(answer for answer in talk.answers if sections(answer))
    assert sections(talk.answer)[0] == sections(new)[0]


@then(step('the model saw "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text in shown_text(talk.answer)


@then(step('the model did not see "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text not in shown_text(talk.answer)


@then("the model saw:")
def _(talk: Talk, datatable: Table) -> None:
    assert [cell for (cell,) in datatable if cell not in shown_text(talk.answer)] == []


@then("the model saw the instructions and the new message word for word")
def _(talk: Talk) -> None:
    assert_nothing_lost(talk, talk.answer)


@then("the model always saw the instructions and the new message word for word")
def _(talk: Talk) -> None:
    for answer in talk.answers:
        assert_nothing_lost(talk, answer)


def assert_nothing_lost(talk: Talk, answer: Answer) -> None:
    assert answer.view[: len(talk.instructions)] == talk.instructions
    newest_user = next(message for message in reversed(answer.messages) if message["role"] == "user")
    assert newest_user in answer.view


@then(step("each prompt began with the one before, except {times:N} times"))
def _(talk: Talk, times: int) -> None:
    assert prefix_breaks(talk) == times


@then(step("of {requests:N} requests no more than {times:N} broke the provider's prompt cache"))
def _(talk: Talk, requests: int, times: int) -> None:
    assert len(talk.answers) >= requests
    assert prefix_breaks(talk) <= times


def prefix_breaks(talk: Talk) -> int:
    views = [answer.view for answer in talk.answers]
    return sum(after[: len(before)] != before for before, after in pairwise(views))


@then(step("no prompt was ever above {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert max(call.prompt_tokens for call in talk.model.asked) <= tokens


@then(step("the prompt was at most {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert talk.answer.asked[-1].prompt_tokens <= tokens


@then(step("the prompt was at least {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert talk.answer.asked[-1].prompt_tokens >= tokens


@then("a line says how many messages are not shown")
def _(talk: Talk) -> None:
    dropped = talk.answer.context["dropped_messages"]
    assert dropped > 0
    assert f"[{dropped} {NOTICE}" in shown_text(talk.answer)


@then("no message was left out")
def _(talk: Talk) -> None:
    assert talk.answer.context["dropped_messages"] == 0


def rest(talk: Talk, answer: Answer) -> list[Body]:
    """What was shown behind the instructions and what stands for earlier messages."""
    assert answer.view[: len(talk.instructions)] == talk.instructions
    shown = answer.view[len(talk.instructions) :]
    first = str(shown[0]["content"])
    shown = shown[1:] if SECTION in first or NOTICE in first else shown
    # What the user said in hidden messages stands for these, too.
    return shown[1:] if USER_TEXT in str(shown[0]["content"]) else shown


def newest(answer: Answer, turns: int) -> list[Body]:
    """The messages of the last turns, the one being answered included."""
    return [message for turn in turns_of(answer.messages)[-turns:] for message in turn]


def sections(answer: Answer) -> list[str]:
    """The summaries as they were shown."""
    told = "".join(str(message["content"]) for message in answer.view if SECTION in str(message["content"]))
    return told.split(SECTION)[1:]


def shown_text(answer: Answer) -> str:
    return "\n".join(str(message["content"]) for message in answer.view)


@then("the model saw the newest turns word for word, from the beginning of one on")
def _(talk: Talk) -> None:
    shown = rest(talk, talk.answer)
    assert shown == talk.answer.messages[-len(shown) :]
    assert shown[0]["role"] == "user"
    assert 1 < len(shown) < len(talk.answer.messages)
