"""Steps of what users complain about most."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import struct
import zlib
from typing import Any

from pytest_bdd import given, then, when

from tests.behaviour.steps.showing import shown_text
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk

HEARTBEAT_SECONDS = 0.03
SIGNED = [
    {"type": "thinking", "thinking": "First the lamps, then the boats.", "signature": "RXJyb3IgaXMgaHVtYW4="},
    {"type": "redacted_thinking", "data": "b3BhcXVlIGJ5dGVz"},
    {"type": "text", "text": "The lamps first."},
]


@given("whoever is asked for a summary never answers")
def _(talk: Talk) -> None:
    talk.model.summary_gate = asyncio.Event()


@given(step("a summary takes as long as {beats:N} heartbeats"))
def _(talk: Talk, beats: int) -> None:
    talk.must_not_have_begun()
    talk.dependencies = dataclasses.replace(talk.dependencies, heartbeat_seconds=HEARTBEAT_SECONDS)
    talk.model.summary_seconds = (beats + 0.5) * HEARTBEAT_SECONDS


@then(step("between the news of the summary and its end the stream carried at least {count:N} chunks without text"))
def _(talk: Talk, count: int) -> None:
    started, ended = (at for at, event in enumerate(talk.answer.events) if "context_event" in event)
    between = talk.answer.events[started + 1 : ended]
    assert len(between) >= count
    assert all(event["choices"][0]["delta"] == {"content": ""} for event in between)


@when(step('the user asks, and while the summary is awaited somebody else says "{text}"'), target_fixture="order")
def _(talk: Talk, text: str) -> list[str]:
    order: list[str] = []
    gate = talk.model.summary_gate
    assert gate is not None
    talk.messages.append(talk.user(40))
    history, others = list(talk.messages), [{"role": "user", "content": text}]

    async def one() -> None:
        await talk.ask(history[-1:])
        order.append("the user")

    async def other() -> None:
        while not talk.model.summaries_asked:  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)
        await talk.ask(others, messages=others, headers={"authorization": "Bearer sk-other"})
        order.append("somebody else")
        gate.set()

    async def both() -> None:
        await asyncio.gather(one(), other())

    talk.run(both())
    return order


@then("somebody else had an answer before the summary was there")
def _(order: list[str]) -> None:
    assert order == ["somebody else", "the user"]


@then(step("no more than {count:N} summaries were asked for"))
def _(talk: Talk, count: int) -> None:
    assert 0 < len(talk.model.summaries_asked) <= count


@then("the model never saw a call without its result or a result without its call")
def _(talk: Talk) -> None:
    assert talk.model.complaints == []
    assert any(message["role"] == "tool" for message in talk.answer.view)


@given("an answer with signed reasoning, which the gateway has not seen yet")
def _(talk: Talk) -> None:
    talk.messages += [talk.user(40), {"role": "assistant", "content": SIGNED, "reasoning_details": [{"data": "x=="}]}]


@then("the model saw the signed reasoning as it came")
def _(talk: Talk) -> None:
    *_rest, answer, _question = talk.answer.view
    assert answer == {"role": "assistant", "content": SIGNED, "reasoning_details": [{"data": "x=="}]}


@when(step("the user shows an image of {wide:N} by {high:N} pixels, which is {chars:N} characters long"))
def _(talk: Talk, wide: int, high: int, chars: int) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png(wide, high, chars * 3 // 4)).decode()}"
    image = {"type": "image_url", "image_url": {"url": url}}
    content: list[dict[str, Any]] = [{"type": "text", "text": "What is this?"}, image]
    talk.say({"role": "user", "content": content})


def png(wide: int, high: int, size: int) -> bytes:
    """The head of an image, and as many bytes as it is to have."""
    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    checked = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + checked + struct.pack(">I", zlib.crc32(checked)) + bytes(size)


@then(step("its estimate is below {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    assert 100 < talk.answer.context["prompt_tokens"] < tokens


@then("no message of the system's was added")
def _(talk: Talk) -> None:
    assert [message for message in talk.answer.view if message["role"] in {"system", "developer"}] == talk.instructions


@then("the fence around the summary is closed once, at its end")
def _(talk: Talk) -> None:
    holding = next(m["content"] for m in talk.answer.view if "<earlier_conversation" in str(m["content"]))
    assert "the system says" in holding
    assert holding.count("</earlier_conversation>") == 1
    assert holding.rstrip().endswith("</earlier_conversation>")
    assert "the system says" in shown_text(talk.answer)


@given("two gateways share one store")
def _(talk: Talk) -> None:
    talk.gateways = 2


@when(step('the user says "{text}" at both gateways at once'))
def _(talk: Talk, text: str) -> None:
    talk.messages.append({"role": "user", "content": text})

    async def both() -> None:
        await talk.start()
        talk.answers += await asyncio.gather(talk.ask(talk.messages[-1:]), talk.ask(talk.messages[-1:]))

    talk.run(both())


@then("the answer's account of what was folded and what was shown adds up to the whole conversation")
def _(talk: Talk) -> None:
    context = talk.answer.context
    folded = sum(summary["to_seq"] - summary["from_seq"] for summary in context["summaries"])
    assert len(context["summaries"]) == 2
    assert folded + context["verbatim_messages"] == len(talk.answer.messages)
    assert (context["trimmed_messages"], context["dropped_messages"]) == (0, 0)


@when(step("the user goes back to turn {turn:N} and says something else"))
def _(talk: Talk, turn: int) -> None:
    talk.messages = [message for one in talk.turns[: turn - 1] for message in one]
    talk.say({"role": "user", "content": "Let us take another way."})
