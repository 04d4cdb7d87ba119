"""Clients that hang up, and requests that come again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from pytest_bdd import given, parsers, then, when

from tests.behaviour.model import Body, Call, Model
from tests.behaviour.steps.preparing import wait_until
from tests.behaviour.steps.setting import tool
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Answer, Talk, reply_of
from tests.live import Reply

REACHED_SECONDS = 0.1
"""By then a request or a hang-up has reached a gateway in this process."""
FAILURE = {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}
NAMED: dict[str, Body] = {
    "that names nothing": {},
    "in conversation garden": {"conversation": "garden"},
    "with key k1": {"headers": {"idempotency-key": "k1"}},
    "that reads a stream": {"stream": True},
}

ANOTHER: dict[str, Body] = {
    "model": {"model": "another-model"},
    "temperature": {"temperature": 0.1},
    "number of choices": {"n": 2},
    "tool": {"tools": [tool("look_up")]},
}


@dataclass
class Thinking(Model):
    """A model that answers when it is told to, and with what."""

    pending: list[tuple[Reply, Call]] = field(default_factory=list)

    def _answer(self, call: Call) -> Reply:
        reply = Reply(gate=asyncio.Event())
        self.pending.append((reply, call))
        return reply

    def says(self, text: str) -> None:
        self.scripted = [{"content": text} for _ in self.pending]
        for reply, call in self.pending:
            made = super()._answer(call)
            reply.body, reply.pieces = made.body, made.pieces
        self._let_go()

    def fails(self) -> None:
        for reply, _ in self.pending:
            reply.body, reply.status = FAILURE, 400
        self._let_go()

    def _let_go(self) -> None:
        for reply, _ in self.pending:
            assert reply.gate is not None
            reply.gate.set()
        self.pending.clear()


@dataclass
class Attempts:
    """What a client has sent, and how."""

    fields: Body = field(default_factory=dict)
    asking: list[asyncio.Task[Answer]] = field(default_factory=list)


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


@given("a model that thinks until it is told to answer")
def _(talk: Talk) -> None:
    talk.must_not_have_begun()
    talk.model = Thinking(windows=talk.model.windows)


@given(parsers.parse('a client {named} has asked "{text}"'))
@when(parsers.parse('a client {named} has asked "{text}"'))
def asks(talk: Talk, attempts: Attempts, named: str, text: str) -> None:
    attempts.fields = NAMED[named]
    talk.messages = [{"role": "user", "content": text}]
    send(talk, attempts, {})


@given(parsers.parse('a client {named} has hung up on "{text}"'))
def _(talk: Talk, attempts: Attempts, named: str, text: str) -> None:
    asks(talk, attempts, named, text)
    wait_until(talk, lambda: bool(talk.model.calls))
    hang_up(talk, attempts.asking[-1])


@when("the first attempt is hung up")
def _(talk: Talk, attempts: Attempts) -> None:
    hang_up(talk, attempts.asking[0])


@when("the client sends it again as a retry")
def _(talk: Talk, attempts: Attempts) -> None:
    send(talk, attempts, {"x-stainless-retry-count": "1"})


@when(step("the client sends it again as a retry, but with another {name}"))
def _(talk: Talk, attempts: Attempts, name: str) -> None:
    attempts.fields = {**attempts.fields, **ANOTHER[name]}
    send(talk, attempts, {"x-stainless-retry-count": "1"})


@when("the client sends it again without saying so")
def _(talk: Talk, attempts: Attempts) -> None:
    send(talk, attempts, {})


@when(step('the model answers "{text}"'))
def _(talk: Talk, text: str) -> None:
    asked_model(talk).says(text)


@when("the model fails")
def _(talk: Talk, attempts: Attempts) -> None:
    asked_model(talk).fails()
    assert answer_of(talk, attempts).status == 400


@then(step('the client hears "{text}"'))
def _(talk: Talk, attempts: Attempts, text: str) -> None:
    answer = answer_of(talk, attempts)
    assert answer.status == 200, answer.body
    assert reply_of(answer)["content"] == text
    talk.answers.append(answer)


@then("it is told that this answer was made before")
def _(talk: Talk, attempts: Attempts) -> None:
    assert answer_of(talk, attempts).headers["idempotent-replayed"] == "true"


@then(step("the client is refused with {status:N} and the code {code}"))
def _(talk: Talk, attempts: Attempts, status: int, code: str) -> None:
    answer = answer_of(talk, attempts)
    assert (answer.status, answer.body["error"]["code"]) == (status, code)


@then(step("the model was asked {count:N} times"))
def _(talk: Talk, count: int) -> None:
    assert len(talk.model.asked) == count


@then(parsers.parse('the conversation reads "{first}", "{second}"'))
def _(talk: Talk, first: str, second: str) -> None:
    assert [message["content"] for message in talk.log()] == [first, second]


def send(talk: Talk, attempts: Attempts, headers: dict[str, str]) -> None:
    """Begin a request, and let it get where it is going."""
    fields: dict[str, Any] = {**attempts.fields, "headers": {**attempts.fields.get("headers", {}), **headers}}

    async def sending() -> None:
        attempts.asking.append(asyncio.ensure_future(talk.ask(talk.messages, **fields)))
        await asyncio.wait({attempts.asking[-1]}, timeout=REACHED_SECONDS)

    talk.run(talk.start())
    talk.run(sending())


def asked_model(talk: Talk) -> Thinking:
    """The model, once it has been asked."""
    model = talk.model
    assert isinstance(model, Thinking)
    wait_until(talk, lambda: bool(model.pending))
    return model


def hang_up(talk: Talk, asking: asyncio.Task[Answer]) -> None:
    async def hanging_up() -> None:
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.sleep(REACHED_SECONDS)

    talk.run(hanging_up())


def answer_of(talk: Talk, attempts: Attempts) -> Answer:
    async def awaited() -> Answer:
        return await attempts.asking[-1]

    return talk.run(awaited())
