"""When … searches, and then: what is found."""

from __future__ import annotations

from typing import Any

from pytest_bdd import then, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk


def _search(talk: Talk, path: str, words: str) -> None:
    talk.received = talk.request("GET", path, params={"q": words})


def _found(talk: Talk) -> Body:
    assert talk.received is not None
    assert talk.received.status_code == 200, talk.received.text
    found: dict[str, Any] = talk.received.json()
    return found


@when(step('the user searches the conversation for "{words}"'))
def _(talk: Talk, words: str) -> None:
    _search(talk, f"/conversations/{talk.answer.body['conversation_id']}/search", words)


@when(step('the user searches all conversations for "{words}"'))
def _(talk: Talk, words: str) -> None:
    _search(talk, "/search", words)


@when(step('somebody else searches all conversations for "{words}"'))
def _(talk: Talk, words: str) -> None:
    own, talk.headers = talk.headers, {"authorization": "Bearer sk-of-somebody-else"}
    _search(talk, "/search", words)
    talk.headers = own


@then(step('the best match says "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert _found(talk)["data"][0]["text"] == text


@then(step("{count:N} conversations are found"))
def _(talk: Talk, count: int) -> None:
    found = [hit["conversation_id"] for hit in _found(talk)["data"]]
    assert len(found) == len(set(found)) == count


@then("nothing is found")
def _(talk: Talk) -> None:
    assert _found(talk)["data"] == []


@then("every message was looked at")
def _(talk: Talk) -> None:
    assert _found(talk)["complete"] is True


@then("the search says that what is encrypted cannot be searched")
def _(talk: Talk) -> None:
    assert talk.received is not None
    assert talk.received.status_code == 400
    error = talk.received.json()["error"]
    assert error["code"] == "search_not_offered"
    assert "encrypts messages" in error["message"]
