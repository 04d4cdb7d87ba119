"""Conversations as a resource: begun, added to, listed and deleted by hand."""

from __future__ import annotations

from typing import Any

from pytest_bdd import parsers, then, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import Table, step
from tests.behaviour.talk import Talk


def _done(talk: Talk, method: str, path: str, **options: Any) -> Body:
    """What a request answers that must succeed."""
    talk.received = talk.request(method, path, **options)
    assert talk.received.status_code == 200, talk.received.text
    found: Body = talk.received.json()
    return found


def _begin(talk: Talk, **fields: Any) -> None:
    talk.begun.append(str(_done(talk, "POST", "/conversations", json=fields)["id"]))


def _rows(table: Table) -> list[Body]:
    """Rows by the names of the first; empty cells are left out."""
    names, *rows = table
    return [{name: cell for name, cell in zip(names, row, strict=True) if cell} for row in rows]


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split(", "))


def _current(talk: Talk) -> str:
    """The conversation that was begun by hand, else that of the last answer."""
    return talk.begun[-1] if talk.begun else str(talk.answer.body["conversation_id"])


def _say(talk: Talk, said: Body) -> None:
    talk.appends = True
    talk.say(said, conversation={"id": talk.begun[-1]})


def _items(talk: Talk, **query: Any) -> list[Body]:
    """All items, page by page."""
    found: list[Body] = []
    wanted = {"order": "asc", "limit": 100, **query}
    while True:
        page = _done(talk, "GET", f"/conversations/{_current(talk)}/items", params=wanted)
        found += page["data"]
        if not page["has_more"]:
            return found
        wanted["after"] = page["last_id"]


def _text(item: Body) -> str:
    return "".join(part["text"] for part in item["content"])


@when("the user begins an empty conversation")
def _(talk: Talk) -> None:
    _begin(talk)


@when("the user begins a conversation with the items:")
def _(talk: Talk, datatable: Table) -> None:
    _begin(talk, items=_rows(datatable))


@when(step('the user begins a conversation with the metadata "{pairs}"'))
def _(talk: Talk, pairs: str) -> None:
    _begin(talk, metadata=_pairs(pairs))


@when("the user adds the items:")
def _(talk: Talk, datatable: Table) -> None:
    path = f"/conversations/{talk.begun[-1]}/items"
    talk.received = talk.request("POST", path, json={"items": _rows(datatable)})


@when(step('the user describes the conversation with "{pairs}"'))
def _(talk: Talk, pairs: str) -> None:
    _done(talk, "POST", f"/conversations/{talk.begun[-1]}", json={"metadata": _pairs(pairs)})


@when("the user deletes the conversation that was begun")
def _(talk: Talk) -> None:
    assert _done(talk, "DELETE", f"/conversations/{talk.begun[-1]}")["deleted"] is True


@when("the user takes out the first item")
def _(talk: Talk) -> None:
    first = _items(talk)[0]["id"]
    _done(talk, "DELETE", f"/conversations/{_current(talk)}/items/{first}")


@when(step('the user says "{text}" in the conversation that was begun'))
def _(talk: Talk, text: str) -> None:
    _say(talk, {"role": "user", "content": text})


@when(step("the user says something of {tokens:N} tokens {times:N} times in the conversation that was begun"))
def _(talk: Talk, tokens: int, times: int) -> None:
    for _turn in range(times):
        _say(talk, talk.user(tokens))


@then(parsers.parse('the model saw the messages "{texts}"'))
def _(talk: Talk, texts: str) -> None:
    assert [one["content"] for one in talk.answer.view] == texts.split(" | ")


@then(step('the model saw the call "{name}" and the result "{output}"'))
def _(talk: Talk, name: str, output: str) -> None:
    call, result = talk.answer.view[:2]
    assert [one["function"]["name"] for one in call["tool_calls"]] == [name]
    assert (result["role"], result["content"]) == ("tool", output)
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]


@then("the answer names the conversation that was begun")
def _(talk: Talk) -> None:
    assert talk.answer.body["conversation_id"] == talk.begun[-1]


@then(step("the items of the conversation are {count:N} messages, in order, with summaries among them"))
def _(talk: Talk, count: int) -> None:
    items = _items(talk)
    messages = [item for item in items if item["type"] == "message"]
    assert [item["role"] for item in messages] == ["user", "assistant"] * (count // 2)
    assert [_text(item) for item in messages] == [one["content"] for one in talk.messages]
    places = [at for at, item in enumerate(items) if item["type"] == "compaction"]
    assert places
    assert 0 < places[0] < len(items) - 1


@then("the items of the conversation say:")
def _(talk: Talk, datatable: Table) -> None:
    told = [{"role": item["role"], "content": _text(item)} for item in _items(talk)]
    assert told == _rows(datatable)


@then(step("pages of {size:N} items are all {count:N} items, in {order} order"))
def _(talk: Talk, size: int, count: int, order: str) -> None:
    whole = [item["id"] for item in _items(talk)]
    paged = [item["id"] for item in _items(talk, limit=size, order="asc" if order == "ascending" else "desc")]
    assert len(whole) == len(set(whole)) == count
    assert paged == (whole if order == "ascending" else whole[::-1])


@then("the conversation that was begun has no items")
def _(talk: Talk) -> None:
    assert _items(talk) == []


@then(step('the list of conversations with "{pairs}" holds the newest one only'))
def _(talk: Talk, pairs: str) -> None:
    assert _listed(talk, pairs) == talk.begun[-1:]


@then(step('the list of conversations with "{pairs}" is empty'))
def _(talk: Talk, pairs: str) -> None:
    assert _listed(talk, pairs) == []


@then(step("the list of conversations holds {count:N}, the newest first"))
def _(talk: Talk, count: int) -> None:
    assert _listed(talk) == talk.begun[::-1]
    assert len(talk.begun) == count


@then("the list of conversations is empty")
def _(talk: Talk) -> None:
    assert _listed(talk) == []


def _listed(talk: Talk, pairs: str = "") -> list[str]:
    wanted = {f"metadata[{name}]": pair for name, pair in _pairs(pairs).items()} if pairs else {}
    return [str(one["id"]) for one in _done(talk, "GET", "/conversations", params=wanted)["data"]]


@then(step('asking in the conversation that was begun is refused with status {status:N} and the code "{code}"'))
def _(talk: Talk, status: int, code: str) -> None:
    _say(talk, {"role": "user", "content": "Are you there?"})
    assert (talk.answer.status, talk.answer.body["error"]["code"]) == (status, code)


@then(step('the request is refused with status {status:N}, about "{place}"'))
def _(talk: Talk, status: int, place: str) -> None:
    assert talk.received is not None
    assert (talk.received.status_code, talk.received.json()["error"]["param"]) == (status, place)
