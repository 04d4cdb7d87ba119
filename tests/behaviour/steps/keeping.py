"""Then …: what the store holds."""

from __future__ import annotations

from datetime import datetime

from pytest_bdd import then

from tests.behaviour.steps.words import step
from tests.behaviour.talk import MODEL, Talk
from tests.behaviour.texts import COUNTER


@then("the store holds the whole conversation word for word")
def _(talk: Talk) -> None:
    kept = [{**message, "content": message.get("content")} for message in talk.log()]
    assert [without_nulls(message) for message in kept] == [without_nulls(message) for message in talk.messages]


def without_nulls(message: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in message.items() if value is not None}


@then(step("the store holds {count:N} summaries that follow each other from the beginning"))
def _(talk: Talk, count: int) -> None:
    chunks = [chunk for chunk in talk.chunks() if not chunk.folds]
    assert len(chunks) == count
    assert [chunk.from_seq for chunk in chunks] == [0, *(chunk.to_seq for chunk in chunks[:-1])]


@then("the store holds one summary")
def _(talk: Talk) -> None:
    assert len(talk.chunks()) == 1


@then("the store holds no summary")
def _(talk: Talk) -> None:
    assert talk.chunks() == []


@then("each summary is kept with its text, the last turn it covers, its own tokens, its time and its model")
def _(talk: Talk) -> None:
    for chunk in talk.chunks():
        assert chunk.text.startswith("Notes ")
        covered = talk.messages[: chunk.to_seq]
        assert chunk.through_turn == sum(message["role"] == "user" for message in covered)
        assert chunk.tokens >= COUNTER.count(chunk.text)
        assert datetime.fromisoformat(chunk.created_at.isoformat()).tzinfo is not None
        assert chunk.model == MODEL


@then("the fold names the summaries it stands for, and these are still kept")
def _(talk: Talk) -> None:
    chunks = talk.chunks()
    (fold,) = (chunk for chunk in chunks if chunk.folds)
    named = [chunk for chunk in chunks if chunk.id in fold.folds]
    assert len(named) == len(fold.folds) > 1
    assert (fold.from_seq, fold.to_seq) == (named[0].from_seq, named[-1].to_seq)


@then(step("the fold stands for {count:N} summaries, the first that weigh more than {tokens:N} tokens together"))
def _(talk: Talk, count: int, tokens: int) -> None:
    chunks = talk.chunks()
    (fold,) = (chunk for chunk in chunks if chunk.folds)
    weights = [chunk.tokens for chunk in chunks if chunk.id in fold.folds]
    assert len(weights) == count
    assert sum(weights[:-1]) <= tokens < sum(weights)


@then("no summary is shown together with its fold")
def _(talk: Talk) -> None:
    shown = talk.answer.context["summaries"]
    folds = {chunk.id: chunk.folds for chunk in talk.chunks()}
    folded = {name for summary in shown for name in folds[summary["id"]]}
    assert folded
    assert folded.isdisjoint(summary["id"] for summary in shown)
    ends = [(summary["from_seq"], summary["to_seq"]) for summary in shown]
    assert [first for first, _ in ends] == [0, *(past for _, past in ends[:-1])]


@then("the one that came second saw the other's message and its answer")
def _(talk: Talk) -> None:
    first, second = (call.messages for call in talk.model.asked[-2:])
    assert second[-3:-1] == [first[-1], {"role": "assistant", "content": talk.model.answers}]


@then("no message of the client's was counted twice")
def _(talk: Talk) -> None:
    users = [said for said in talk.counted if said.startswith("Turn ")]
    assert len(users) == len(set(users)) == len(talk.turns)
