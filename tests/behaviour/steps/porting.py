"""Files that come in, and conversations that go out."""

from __future__ import annotations

import json
from typing import Any

from pytest_bdd import given, then, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import Table, step
from tests.behaviour.talk import Talk
from tests.behaviour.texts import message


@given(step('the file "{name}" with the messages:'))
def _(talk: Talk, name: str, datatable: Table) -> None:
    _write(talk, [{"role": role, "content": text} for role, text in datatable])


@given(step("a file with a history of {turns:N} turns of {tokens:N} tokens"))
def _(talk: Talk, turns: int, tokens: int) -> None:
    history = []
    for turn in range(turns):
        history.append(message("user", tokens // 2, f"Turn {turn + 1}:"))
        history.append(message("assistant", tokens // 2, f"Answer {turn + 1}:"))
    _write(talk, history)


def _write(talk: Talk, messages: list[Body]) -> None:
    talk.file = b"".join(json.dumps(one).encode() + b"\n" for one in messages)


@when("the user imports the file")
def _(talk: Talk) -> None:
    talk.received = talk.request("POST", "/conversations/import", content=talk.file)


@when("the client brings that history")
def _(talk: Talk) -> None:
    talk.messages = [json.loads(line) for line in talk.file.splitlines()]


@when(step('the user says "{text}" in the imported conversation'))
def _(talk: Talk, text: str) -> None:
    talk.appends = True
    talk.say({"role": "user", "content": text}, conversation=_imported(talk)["id"])


@when(step('the user says "{text}" with that history in the imported conversation'))
def _(talk: Talk, text: str) -> None:
    talk.say({"role": "user", "content": text}, conversation=_imported(talk)["id"])


@when("the conversation is exported and imported again")
def _(talk: Talk) -> None:
    out = talk.request("GET", f"/conversations/{talk.answer.body['conversation_id']}/export")
    talk.file = out.content
    talk.received = talk.request("POST", "/conversations/import", content=talk.file)


@then("the answer names the imported conversation")
def _(talk: Talk) -> None:
    assert talk.answer.body["conversation_id"] == _imported(talk)["id"]


@then("the model saw the messages:")
def _(talk: Talk, datatable: Table) -> None:
    assert [[one["role"], one["content"]] for one in talk.answer.view] == [list(row) for row in datatable]


@then("the imported conversation has the same messages")
def _(talk: Talk) -> None:
    assert _imported(talk)["id"] != talk.answer.body["conversation_id"]
    again = talk.request("GET", f"/conversations/{_imported(talk)['id']}/export")
    told = [json.loads(line) for line in again.text.splitlines()]
    assert [(one["role"], one["content"]) for one in told] == [(one["role"], one["content"]) for one in talk.messages]


@then(step('the file is refused because of "{place}"'))
def _(talk: Talk, place: str) -> None:
    assert talk.received is not None
    assert talk.received.status_code == 400
    assert talk.received.json()["error"]["param"] == place


@then("there are no conversations")
def _(talk: Talk) -> None:
    assert talk.request("GET", "/conversations").json()["data"] == []


def _imported(talk: Talk) -> dict[str, Any]:
    assert talk.received is not None
    assert talk.received.status_code == 200, talk.received.text
    (found,) = talk.received.json()["data"]
    return dict(found)
