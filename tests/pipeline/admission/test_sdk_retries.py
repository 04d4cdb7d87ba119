"""OpenAI's own client behind a bad connection or in front of a slow model: it retries, and is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.faults import Wire, wire
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import World, until, user, world

ASKED: Any = {"model": "m", "messages": [user("Hi")]}


class Client(openai.AsyncOpenAI):
    """Retries at once, and notes with which counts."""

    def _calculate_retry_timeout(self, *_: Any, **__: Any) -> float:
        return 0.01


def client_of(address: str, **options: Any) -> Client:
    return Client(base_url=address, api_key="sk-one", max_retries=3, **options)


async def heard(client: Client, *, streamed: bool, **options: Any) -> str:
    if not streamed:
        answer = await client.chat.completions.create(**ASKED, **options)
        return str(answer.choices[0].message.content)
    parts: Any = await client.chat.completions.create(**ASKED, **options, stream=True)
    return "".join([part.choices[0].delta.content or "" async for part in parts])


def slow_reply(*, streamed: bool) -> tuple[Reply, asyncio.Event]:
    reply = stream("The ", "answer.") if streamed else completion("The answer.")
    reply.gate = asyncio.Event()
    return reply, reply.gate


async def expect_one_turn(w: World) -> None:
    assert len(w.upstream.bodies) == 1
    (conversation,) = w.conversations()
    assert [message["content"] for message in await w.log(conversation.id)] == ["Hi", "The answer."]


@pytest.mark.parametrize("cut", [Wire.cut, Wire.cut_clients], ids=["both sides", "the server is not told"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_connection_that_is_cut_while_the_model_thinks(
    streamed: bool,
    cut: Callable[[Wire], None],
) -> None:
    slow, gate = slow_reply(streamed=streamed)
    known_to_be_gone = streamed and cut is Wire.cut
    upstream = ScriptedUpstream(slow, *([stream("The ", "answer.")] if known_to_be_gone else []))
    async with world(upstream) as w, wire(w.base_url) as proxy, client_of(proxy.address) as client:
        asking = asyncio.ensure_future(heard(client, streamed=streamed))
        await until(lambda: w.rows() == 1)
        cut(proxy)
        await until(lambda: proxy.connections == 2)
        if known_to_be_gone:
            # A stream is given up with its client; its retry asks again, in the same place.
            await until(lambda: len(upstream.bodies) == 2)
            del upstream.bodies[0]
        else:
            await asyncio.sleep(0.05)
        gate.set()
        assert await asking == "The answer."
        await expect_one_turn(w)


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "k"}])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_is_slower_than_the_clients_patience(
    streamed: bool,
    key: dict[str, str],
) -> None:
    """A client whose time is over hangs up and asks again; a whole answer goes on meanwhile."""
    slow, gate = slow_reply(streamed=streamed)
    upstream = ScriptedUpstream(slow, *([stream("The ", "answer.")] if streamed else []))
    async with world(upstream) as w, wire(w.base_url) as proxy:
        async with client_of(proxy.address, timeout=0.4) as client:
            asking = asyncio.ensure_future(heard(client, streamed=streamed, extra_headers=key))
            await until(lambda: proxy.connections == 2)
            gate.set()
            assert await asking == "The answer."
        if streamed:
            del upstream.bodies[0]
        await expect_one_turn(w)


async def test_an_answer_whose_way_back_was_cut_is_not_made_again() -> None:
    async with world(ScriptedUpstream(completion("The answer."))) as w, wire(w.base_url) as proxy:
        proxy.loses_answers = 1
        async with client_of(proxy.address) as client:
            assert await heard(client, streamed=False) == "The answer."
        assert proxy.connections == 2
        await expect_one_turn(w)
