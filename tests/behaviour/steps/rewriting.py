"""Clients that change what they resend, each with a conversation of its own, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from pytest_bdd import given, parsers, then, when

from tests.behaviour.model import Body, Call, Model
from tests.behaviour.steps.setting import tool
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk, reply_of
from tests.live import Reply

Tell = Callable[[list[Body]], list[Body]]
"""What a client makes of its whole conversation for the next request."""
MASK = "[The output was left out.]"
SUMMARY = "Summary by the client: they spoke about gardens, and about what grows in them, at some length."
NAMED_NOTE = "It is day"


def words(text: str) -> str:
    """Thirty words that follow no other text."""
    return " ".join(hashlib.sha256(f"{text} {number}".encode()).hexdigest()[:5] for number in range(30))


@dataclass
class Talkative(Model):
    """A model that gives each history an answer of its own, a greeting to a greeting, and calls a tool where it has one
    and no result yet."""

    def _answer(self, call: Call) -> Reply:
        last = str(call.messages[-1]["content"])
        own = words(json.dumps(call.messages))
        if not self.scripted and call.body.get("tools") and call.messages[-1]["role"] == "user":
            asked = {"name": "look_up", "arguments": json.dumps({"query": last[:20]})}
            calls = [{"id": f"call_{own.replace(' ', '')[:24]}", "type": "function", "function": asked}]
            self.scripted = [{"content": None, "tool_calls": calls}]
        greets = last == "Hi"
        scripted = self.scripted or [{"content": "Hello! How can I help?" if greets else f"Answer: {own}"}]
        self.scripted = scripted[:1]
        reply = super()._answer(call)
        if call.body.get("n") == 2:
            first = reply.body["choices"][0]
            other = {**first["message"], "content": f"Second: {own}"}
            reply.body["choices"].append({**first, "index": 1, "message": other})
        return reply


@dataclass
class Client:
    """One client: what was said so far, and its habit."""

    tell: Tell
    fields: Body = field(default_factory=dict)
    messages: list[Body] = field(default_factory=list)
    logged: list[Body] = field(default_factory=list)
    """What its log has to hold: every message as it was first said."""
    ids: list[str] = field(default_factory=list)


@pytest.fixture
def clients() -> dict[str, Client]:
    """By their names."""
    return {}


def note_before_newest(messages: list[Body]) -> list[Body]:
    at = max(at for at, message in enumerate(messages) if message["role"] == "user")
    return [*messages[:at], {"role": "system", "content": f"{NAMED_NOTE} {at}."}, *messages[at:]]


def mask_old_results(messages: list[Body]) -> list[Body]:
    old = [at for at, message in enumerate(messages) if message["role"] == "tool"][:-1]
    return [message | {"content": MASK} if at in old else message for at, message in enumerate(messages)]


def drop_old_results(messages: list[Body]) -> list[Body]:
    old = [message["tool_call_id"] for message in messages if message["role"] == "tool"][:-1]
    gone = [message for message in messages if message.get("tool_call_id") in old]
    gone += [message for message in messages if (message.get("tool_calls") or [{}])[0].get("id") in old]
    return [message for message in messages if message not in gone]


def summarize_old(messages: list[Body]) -> list[Body]:
    if len(messages) < 8:
        return messages
    return [{"role": "user", "content": SUMMARY}, *messages[-5:]]


def summarize_beside_users(messages: list[Body]) -> list[Body]:
    if len(messages) < 8:
        return messages
    users = [message for message in messages[:-5] if message["role"] == "user"]
    return [*users, {"role": "user", "content": SUMMARY}, *messages[-5:]]


def summarize_all_answers(messages: list[Body]) -> list[Body]:
    """As Codex does: after a compaction, the user's messages, a summary, and what is said from then on."""
    if len(messages) < 11:
        return messages
    users = [message for message in messages[:10] if message["role"] == "user"]
    return [*users, {"role": "user", "content": SUMMARY}, *messages[10:]]


def keep_less_of_answers(messages: list[Body]) -> list[Body]:
    return [m | {"content": m["content"][:-6]} if m["role"] == "assistant" else m for m in messages]


HABITS: Mapping[str, Tell] = {
    "resends everything": list,
    "puts a note before its newest message": note_before_newest,
    "masks old tool results": mask_old_results,
    "drops old tool results and their calls": drop_old_results,
    "keeps a window of 5 messages": lambda messages: messages[-5:],
    "replaces what is old by a summary": summarize_old,
    "keeps its user's messages and replaces the rest by a summary": summarize_beside_users,
    "replaces all answers by a summary": summarize_all_answers,
    "keeps one chunk less of each answer": keep_less_of_answers,
}


@given("a model that gives each conversation answers of its own")
def _(talk: Talk) -> None:
    talk.must_not_have_begun()
    talk.model = Talkative(windows=talk.model.windows)
    talk.instructions = [{"role": "system", "content": "You help with gardens."}]


@given(parsers.parse("{name:w} has a client that {habit}"))
def _(clients: dict[str, Client], name: str, habit: str) -> None:
    clients[name] = Client(HABITS[habit])


@given(parsers.parse("each client says in its requests that its {field_name} is {value}"))
def _(clients: dict[str, Client], field_name: str, value: str) -> None:
    for client in clients.values():
        client.fields[field_name] = value


@given(parsers.parse("{name:w}'s client says in its requests that its {field_name} is {value}"))
def _(clients: dict[str, Client], name: str, field_name: str, value: str) -> None:
    clients[name].fields[field_name] = value


@given(step("the application begins each conversation with the same {count:N} examples"))
def _(clients: dict[str, Client], count: int) -> None:
    for client in clients.values():
        for number in range(count):
            client.messages.append({"role": "user", "content": f"Example {number}"})
            client.messages.append({"role": "assistant", "content": words(f"Example {number}")})
        client.logged = list(client.messages)


@when(parsers.parse('{name:w} says "{text}"'))
def _(talk: Talk, clients: dict[str, Client], name: str, text: str) -> None:
    send_new(talk, clients[name], {"role": "user", "content": text})


@given(step("{name:w} has asked {count:N} questions"))
@when(step("{name:w} asks {count:N} questions"))
def _(talk: Talk, clients: dict[str, Client], name: str, count: int) -> None:
    for _number in range(count):
        send_new(talk, clients[name], next_question(clients[name], name))


@when(step("{name:w} asks {count:N} questions that need a tool"))
def _(talk: Talk, clients: dict[str, Client], name: str, count: int) -> None:
    client = clients[name]
    client.fields["tools"] = [tool("look_up")]
    for _number in range(count):
        send_new(talk, client, next_question(client, name))
        asked = client.messages[-1]["tool_calls"][0]["id"]
        result = f"Result for {name}: {words(f'{name} {len(client.messages)}')}"
        send_new(talk, client, {"role": "tool", "tool_call_id": asked, "content": result})


@when(parsers.parse("{name:w} asks a question and goes on with the second of two answers"))
def _(talk: Talk, clients: dict[str, Client], name: str) -> None:
    client = clients[name]
    send_new(talk, client, next_question(client, name), n=2)
    client.messages[-1] = {"role": "assistant", "content": talk.answer.body["choices"][1]["message"]["content"]}


@when(parsers.parse('{name:w} asks a question and begins the answer with "{text}"'))
def _(talk: Talk, clients: dict[str, Client], name: str, text: str) -> None:
    client = clients[name]
    new = next_question(client, name)
    client.messages.append(new)
    client.logged.append(new)
    send_new(talk, client, {"role": "assistant", "content": text})
    begun, answer = client.messages[-2:]
    client.messages[-2:] = [{"role": "assistant", "content": begun["content"] + answer["content"]}]


@when(parsers.parse("{name:w} brings a history of his own that ends as {other:w}'s does"))
def _(clients: dict[str, Client], name: str, other: str) -> None:
    client = clients[name]
    client.messages = [next_question(client, name), {"role": "assistant", "content": words(f"An answer to {name}")}]
    client.messages += clients[other].messages[-2:]
    client.logged = list(client.messages)


@when(parsers.parse("{name:w} wants another answer to the last question"))
def _(talk: Talk, clients: dict[str, Client], name: str) -> None:
    client = clients[name]
    client.messages.pop()
    client.logged.pop()
    talk.model.scripted = [{"content": f"Another answer: {words('another')}"}]
    send_new(talk, client, None)


@when(parsers.parse('{name:w} changes the last question to "{text}"'))
def _(talk: Talk, clients: dict[str, Client], name: str, text: str) -> None:
    client = clients[name]
    del client.messages[-2:], client.logged[-2:]
    send_new(talk, client, {"role": "user", "content": text})


@then(parsers.parse("{name:w} has one conversation"))
def _(clients: dict[str, Client], name: str) -> None:
    assert len(set(clients[name].ids)) == 1


@then(parsers.parse("{name:w}'s last answer is in another conversation than those before"))
def _(clients: dict[str, Client], name: str) -> None:
    *before, last = clients[name].ids
    assert last not in before


@then(parsers.parse("{name:w}'s log has every message as it was said, once and in order"))
def _(talk: Talk, clients: dict[str, Client], name: str) -> None:
    talk.answers.append(next(one for one in reversed(talk.answers) if one.body["conversation_id"] in clients[name].ids))
    said = [message for message in talk.log() if not is_note(message)]
    assert [essence(message) for message in said] == [essence(message) for message in clients[name].logged]


@then(parsers.parse("{name:w}'s log ends with what the client sent and its answer"))
def _(talk: Talk, clients: dict[str, Client], name: str) -> None:
    sent = [essence(message) for message in talk.answer.messages]
    log = [essence(message) for message in talk.log()]
    assert log[:-1] == sent
    assert log[-1] == essence(clients[name].messages[-1])


@then("the log has each note once")
def _(talk: Talk) -> None:
    notes = [message["content"] for message in talk.log() if is_note(message)]
    assert notes
    assert len(set(notes)) == len(notes)


@then("the model saw exactly what the client sent")
def _(talk: Talk) -> None:
    assert talk.answer.view == [*talk.instructions, *talk.answer.messages]


@then(parsers.parse("the conversations of {name:w} and {other:w} are different ones"))
def _(clients: dict[str, Client], name: str, other: str) -> None:
    assert set(clients[name].ids).isdisjoint(clients[other].ids)


@then(parsers.parse('"{text}" is in no log but that of {name:w}'))
def _(talk: Talk, clients: dict[str, Client], text: str, name: str) -> None:
    read: dict[str, str] = {}
    for answer in list(talk.answers):
        talk.answers.append(answer)
        read[answer.body["conversation_id"]] = str(talk.log())
    assert [one for one, log in read.items() if text in log] == clients[name].ids[-1:]


@then(parsers.parse("deleting {name:w}'s conversation with its branches leaves that of {other:w}"))
def _(talk: Talk, clients: dict[str, Client], name: str, other: str) -> None:
    gone = talk.request("DELETE", f"/conversations/{clients[name].ids[-1]}", params={"branches": "true"})
    assert gone.json()["deleted"] is True
    assert talk.request("GET", f"/conversations/{clients[other].ids[-1]}").status_code == 200


def next_question(client: Client, name: str) -> Body:
    number = len(client.messages)
    return {"role": "user", "content": f"{name} asks {number}: {words(f'{name} asks {number}')}?"}


def send_new(talk: Talk, client: Client, new: Body | None, **fields: object) -> None:
    """What the client makes of its past, then what is new; the answer joins its conversation."""
    if new is not None:
        client.messages.append(new)
        client.logged.append(new)
    talk.messages = client.tell(list(client.messages))
    answer = talk.run(talk.ask(talk.messages, **client.fields, **fields))
    assert answer.status == 200, answer.body
    talk.answers.append(answer)
    reply = reply_of(answer)
    client.messages.append({name: reply[name] for name in ("role", "content", "tool_calls") if name in reply})
    client.logged.append(client.messages[-1])
    client.ids.append(answer.body["conversation_id"])


def is_note(message: Body) -> bool:
    return str(message["role"]) == "system"


def essence(message: Body) -> tuple[object, ...]:
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    return message["role"], message["content"], calls, message.get("tool_call_id")
