"""Looking at what the model would see, and saw; correcting summaries; compacting and pinning on request."""

from __future__ import annotations

import json
from typing import Any

from pytest_bdd import then, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk


def _conversation(talk: Talk) -> str:
    return f"/conversations/{talk.answer.body['conversation_id']}"


def _ask(talk: Talk, method: str, path: str, **options: Any) -> None:
    talk.received = talk.request(method, f"{_conversation(talk)}{path}", **options)


def _told(talk: Talk) -> Body:
    assert talk.received is not None
    assert talk.received.status_code == 200, talk.received.text
    found: Body = talk.received.json()
    return found


def _items(talk: Talk) -> list[str]:
    """The ids of the stored messages, in order."""
    _ask(talk, "GET", "/context", params={"order": "asc", "limit": 1000})
    return [str(row["id"]) for row in _told(talk)["messages"]["data"]]


@when("the user looks at what would be sent now")
def _(talk: Talk) -> None:
    _ask(talk, "GET", "/context", params={"order": "asc", "limit": 1000})


@when(step('the user looks at what the model "{name}" would be sent now'))
def _(talk: Talk, name: str) -> None:
    _ask(talk, "GET", "/context", params={"order": "asc", "limit": 1000, "model": name})


@when(step("the user looks at what the model saw for its {which} answer"))
def _(talk: Talk, which: str) -> None:
    items = _items(talk)
    item = {"first": items[1], "last": items[-1]}[which]
    _ask(talk, "GET", f"/items/{item}/context", params={"order": "asc", "include[]": "sent"})


@then(step('it would be "{status}"'))
@then(step('it was "{status}"'))
def _(talk: Talk, status: str) -> None:
    assert _told(talk)["status"] == status


@then(step('message {seq:N} would be shown as "{kind}"'))
def _(talk: Talk, seq: int, kind: str) -> None:
    assert _told(talk)["messages"]["data"][seq]["disposition"] == kind


@then(step('message {seq:N} would be shown as "{kind}", because "{reason}"'))
def _(talk: Talk, seq: int, kind: str, reason: str) -> None:
    row = _told(talk)["messages"]["data"][seq]
    assert (row["disposition"], row["reason"]) == (kind, reason)
    assert row["summary_id"] in [one["id"] for one in _told(talk)["summaries"]]


@then(step('the newest message would be shown as "{kind}"'))
def _(talk: Talk, kind: str) -> None:
    assert _told(talk)["messages"]["data"][-1]["disposition"] == kind


@then(step("it would weigh at most {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert _told(talk)["prompt_tokens"] <= tokens


@then("it is what was really sent")
def _(talk: Talk) -> None:
    told = _told(talk)
    answered = next(one for one in talk.answers if len(one.messages) == told["messages"]["data"][-1]["seq"] + 1)
    assert told["exact"] is True
    assert told["sent"] == answered.view


@then("each message that was sent says which messages of the log it stands for")
def _(talk: Talk) -> None:
    told = _told(talk)
    summary, *others = told["sent_places"]
    assert summary["kind"] == "summary"
    assert [part["summary_id"] for part in summary["parts"]][1:] == [one["id"] for one in told["summaries"]]
    kept = [part["from_seq"] for one in others if one["kind"] == "user_text" for part in one["parts"]]
    assert list(dict.fromkeys(kept)) == told["user_text"]["seqs"]
    others = [one for one in others if one["kind"] != "user_text"]
    stood_for = [seq for one in (summary, *others) for seq in range(one["from_seq"], one["to_seq"])]
    assert stood_for == list(range(told["messages"]["data"][-1]["seq"] + 1))
    assert len(told["sent_places"]) == len(told["sent"])


@then(step("the model has been asked {times:N} times"))
def _(talk: Talk, times: int) -> None:
    assert len(talk.model.calls) == times


def _summary(talk: Talk) -> Body:
    """The first summary of the conversation."""
    found: Body = talk.request("GET", f"{_conversation(talk)}/summaries").json()["data"][0]
    return found


@when(step('the user rewrites the first summary as "{text}" having seen revision {revision:N}'))
def _(talk: Talk, text: str, revision: int) -> None:
    body = {"text": text, "revision": revision}
    _ask(talk, "PATCH", f"/summaries/{_summary(talk)['id']}", json=body)


@when(step('the user rewrites the first summary as "{text}"'))
def _(talk: Talk, text: str) -> None:
    _ask(talk, "PATCH", f"/summaries/{_summary(talk)['id']}", json={"text": text})
    assert _told(talk)["kind"] == "edited"


@when(step("the user goes back to revision {revision:N} of the first summary"))
def _(talk: Talk, revision: int) -> None:
    _ask(talk, "POST", f"/summaries/{_summary(talk)['id']}/rollback", json={"revision": revision})


@when(step('the user has the first summary written anew with "{instructions}"'))
def _(talk: Talk, instructions: str) -> None:
    path = f"/summaries/{_summary(talk)['id']}/regenerate"
    _ask(talk, "POST", path, json={"instructions": instructions})


@when("the user deletes the first summary")
def _(talk: Talk) -> None:
    _ask(talk, "DELETE", f"/summaries/{_summary(talk)['id']}")
    assert _told(talk)["deleted"] is True


@then(step("the first summary has {count:N} revisions"))
def _(talk: Talk, count: int) -> None:
    _ask(talk, "GET", f"/summaries/{_summary(talk)['id']}")
    assert [one["revision"] for one in _told(talk)["revisions"]] == list(range(1, count + 1))


@then(step('the first summary says "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert _summary(talk)["text"] == text


@then(step('whoever wrote it last was told "{text}"'))
def _(talk: Talk, text: str) -> None:
    assert text in json.dumps(talk.model.summaries_asked[-1].messages)


@then(step("that is refused with {status:N} and the code {code}"))
def _(talk: Talk, status: int, code: str) -> None:
    assert talk.received is not None
    assert (talk.received.status_code, talk.received.json()["error"]["code"]) == (status, code)


@when(step('the user compacts the conversation, with the focus on "{focus}"'))
def _(talk: Talk, focus: str) -> None:
    _ask(talk, "POST", "/compact", json={"instructions": f"Focus on {focus}."})


@when(step("the user compacts the conversation through message {seq:N}"))
def _(talk: Talk, seq: int) -> None:
    item = _items(talk)[seq]
    _ask(talk, "POST", "/compact", json={"through_item": item})


@when("the user asks what a compaction would do")
def _(talk: Talk) -> None:
    _ask(talk, "POST", "/compact", json={"dry_run": True})


@when("the user compacts the conversation and watches")
def _(talk: Talk) -> None:
    _ask(talk, "POST", "/compact", json={"stream": True})


@then("the conversation weighs less than before")
@then("the conversation would weigh less than before")
def _(talk: Talk) -> None:
    assert _told(talk)["tokens_after"] < _told(talk)["tokens_before"]


@then("nothing was compacted, and it says why")
def _(talk: Talk) -> None:
    assert _told(talk)["ran"] is False
    assert _told(talk)["reason"]


@then("the user sees that it starts, each summary, and that it is done")
def _(talk: Talk) -> None:
    assert talk.received is not None
    frames = talk.received.text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
    kinds = [event["type"] for event in events if event["type"] != "compaction_progress"]
    assert kinds == ["compaction_started", "summary_completed", "compaction_completed"]
    assert events[-1]["ran"] is True


@when(step("the user pins the stored message {seq:N}"))
def _(talk: Talk, seq: int) -> None:
    item = _items(talk)[seq]
    _ask(talk, "POST", f"/items/{item}/pin")


@then(step("the list of pins names message {seq:N}"))
def _(talk: Talk, seq: int) -> None:
    assert _pinned(talk) == [(seq, seq + 1)]


@then(step("the list of pins names messages {first:N} to {last:N}"))
def _(talk: Talk, first: int, last: int) -> None:
    assert _pinned(talk) == [(first, last + 1)]


@then("nothing is pinned")
def _(talk: Talk) -> None:
    assert _pinned(talk) == []


def _pinned(talk: Talk) -> list[tuple[int, int]]:
    _ask(talk, "GET", "/pins")
    return [(pin["from_seq"], pin["to_seq"]) for pin in _told(talk)["data"]]


@when(step("the user unpins the stored message {seq:N}"))
def _(talk: Talk, seq: int) -> None:
    item = _items(talk)[seq]
    _ask(talk, "DELETE", f"/items/{item}/pin")
    assert _told(talk)["pinned"] is False
