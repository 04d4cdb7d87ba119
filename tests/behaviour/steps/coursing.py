"""Reading the course of a conversation: its turns, its log, its branches."""

from __future__ import annotations

import json
from typing import Any

from pytest_bdd import then, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk


def _path(talk: Talk, what: str) -> str:
    return f"/conversations/{talk.answers[0].body['conversation_id']}/{what}"


def _read(talk: Talk, what: str, **query: Any) -> None:
    talk.received = talk.request("GET", _path(talk, what), params=query)


def _rows(talk: Talk) -> list[Body]:
    assert talk.received is not None
    assert talk.received.status_code == 200, talk.received.text
    found: list[Body] = talk.received.json()["data"]
    return found


@when("the user looks at the turns of the conversation")
def _(talk: Talk) -> None:
    _read(talk, "turns", limit=1000)


@when(step("the user looks at the turns of the conversation, {limit:N} at a time"))
def _(talk: Talk, limit: int) -> None:
    rows: list[Body] = []
    while not rows or talk.received is None or talk.received.json()["has_more"]:
        _read(talk, "turns", limit=limit, **({"after": rows[-1]["id"]} if rows else {}))
        rows += _rows(talk)
    _read(talk, "turns", limit=1000)
    assert _rows(talk) == rows


@then("there is a turn for each answer")
def _(talk: Talk) -> None:
    assert [row["turn"] for row in _rows(talk)] == list(range(1, len(talk.answers) + 1))
    assert [row["status"] for row in _rows(talk)] == [answer.said for answer in talk.answers]


@then(step('turn {turn:N} was "{status}" and saved nothing'))
def _(talk: Talk, turn: int, status: str) -> None:
    row = _rows(talk)[turn - 1]
    assert (row["status"], row["saved_tokens"]) == (status, 0)


@then(step('the last turn was "{status}" and saved tokens'))
def _(talk: Talk, status: str) -> None:
    row = _rows(talk)[-1]
    assert row["status"] == status
    assert row["saved_tokens"] > 0


@then(step("no turn was sent more than {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert max(row["prompt_tokens"] for row in _rows(talk)) <= tokens


@when(step("the user reads the log from message {seq:N}"))
def _(talk: Talk, seq: int) -> None:
    _read(talk, "log", from_seq=seq)


@then(step('message {seq:N} of the log says "{text}"'))
def _(talk: Talk, seq: int, text: str) -> None:
    assert _rows(talk)[seq]["text"] == text


@then(step("message {seq:N} of the log says nothing"))
def _(talk: Talk, seq: int) -> None:
    assert _rows(talk)[seq]["text"] == ""
    assert _rows(talk)[seq]["deleted"] is True


@then(step("a summary covers message {seq:N} of the log"))
def _(talk: Talk, seq: int) -> None:
    assert _rows(talk)[seq]["summary_id"].startswith("sum_")


@then(step('"{word}" is nowhere in what was told'))
def _(talk: Talk, word: str) -> None:
    assert word not in json.dumps(_rows(talk))


@when(step('the user asks the last question in other words: "{text}"'))
def _(talk: Talk, text: str) -> None:
    del talk.messages[-2:]
    talk.say({"role": "user", "content": text})


@when("the user looks at the branches of the conversation")
def _(talk: Talk) -> None:
    _read(talk, "branches")


@then(step("there are {count:N} branches"))
def _(talk: Talk, count: int) -> None:
    assert len(_rows(talk)) == count


@then(step('the newest is called "{title}" and left the other at message {seq:N}'))
def _(talk: Talk, title: str, seq: int) -> None:
    first, *_, newest = _rows(talk)
    assert (newest["title"], newest["parent_id"], newest["fork_seq"]) == (title, first["id"], seq)


@when("somebody else reads its turns, its log and its branches")
def _(talk: Talk) -> None:
    own, talk.headers = talk.headers, {"authorization": "Bearer sk-of-somebody-else"}
    for what in ("turns", "log", "branches"):
        _read(talk, what)
        assert talk.received is not None
        assert talk.received.status_code == 404, what
    talk.headers = own


@then("each time there is no such conversation")
def _(talk: Talk) -> None:
    assert talk.received is not None
    assert talk.received.json()["error"]["code"] == "conversation_not_found"
