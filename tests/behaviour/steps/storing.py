"""Completions that are stored because their client asked for it."""

from __future__ import annotations

from typing import Any

from pytest_bdd import given, then, when

from tests.behaviour.steps.words import Table
from tests.behaviour.talk import Talk, reply_of


@given("answers are stored")
def _(talk: Talk) -> None:
    talk.fields = {**talk.fields, "store": True}


@when("the first message of the conversation is erased")
def _(talk: Talk) -> None:
    place = f"/conversations/{talk.answer.body['conversation_id']}/items"
    first = talk.request("GET", place, params={"order": "asc", "limit": 1}).json()["data"][0]
    assert talk.request("DELETE", f"{place}/{first['id']}", params={"erase": "true"}).status_code == 200


@when("the conversation is deleted")
def _(talk: Talk) -> None:
    assert talk.request("DELETE", f"/conversations/{talk.answer.body['conversation_id']}").status_code == 200


@when("its stored completion is deleted")
def _(talk: Talk) -> None:
    assert talk.request("DELETE", f"/chat/completions/{talk.answer.body['id']}").json()["deleted"] is True


@then("its stored completion says what the answer said")
def _(talk: Talk) -> None:
    (choice,) = _stored(talk)["choices"]
    assert choice["message"]["content"] == reply_of(talk.answer)["content"]
    assert choice["finish_reason"] == "stop"


@then("its stored completion has the metadata:")
def _(talk: Talk, datatable: Table) -> None:
    assert list(_stored(talk)["metadata"].items()) == [(name, value) for name, value in datatable]


@then("its stored completion answers:")
def _(talk: Talk, datatable: Table) -> None:
    listed = talk.request("GET", f"/chat/completions/{talk.answer.body['id']}/messages").json()["data"]
    assert [[one["role"], one["content"]] for one in listed] == [list(row) for row in datatable]


@then("there are no stored completions")
def _(talk: Talk) -> None:
    assert talk.request("GET", "/chat/completions").json()["data"] == []


@then("the model was not told to store anything")
def _(talk: Talk) -> None:
    assert all(call.body.keys().isdisjoint({"store", "metadata"}) for call in talk.model.calls)


def _stored(talk: Talk) -> dict[str, Any]:
    found = talk.request("GET", f"/chat/completions/{talk.answer.body['id']}")
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body
