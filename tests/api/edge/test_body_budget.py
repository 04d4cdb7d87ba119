"""The bodies of all requests in flight have a bound in bytes, of which one tenant gets half."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.api.edge.request_reader import BodyBudget, HeldBody
from app.errors import Overloaded
from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import until, user, world

BODY_LIMIT = 100_000
SECTIONS: dict[str, Any] = {
    "server": {"body_limit_bytes": BODY_LIMIT},
    "limits": {"max_concurrent_body_bytes": 4 * BODY_LIMIT},
}
LARGE = "x" * (BODY_LIMIT * 9 // 10)


def assert_told(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (503, "overloaded", "2")
    assert "limits.max_concurrent_body_bytes" in error["message"]


def test_a_sender_holds_half_and_all_together_the_whole() -> None:
    budget = BodyBudget(400, 100)
    bodies = first, second, third, fourth = [HeldBody(budget, sender) for sender in "aabc"]
    first.grow_to(150)
    second.grow_to(50)
    with pytest.raises(Overloaded):
        second.grow_to(51)
    third.grow_to(200)
    with pytest.raises(Overloaded):
        fourth.grow_to(1)
    for body in bodies:
        budget.release(body.sender, body.size)
    assert not budget._sender_bytes
    assert budget._held_bytes == 0


def test_one_body_of_the_largest_size_is_always_possible() -> None:
    HeldBody(BodyBudget(100, 100), "a").grow_to(100)


async def test_large_bodies_of_one_tenant_are_refused_and_harm_no_other() -> None:
    gate = asyncio.Event()
    reply = completion()
    reply.gate = gate
    upstream = ScriptedUpstream(default=lambda _: reply)
    async with world(upstream, window=1_000_000, **SECTIONS) as w:
        running = [asyncio.ensure_future(w.post([user(LARGE)], key="hostile", stream=False)) for _ in range(2)]
        await until(lambda: len(upstream.bodies) == 2)
        for path in ("chat/completions", "responses", "embeddings", "context/count", "conversations/import"):
            body = {"model": "m", "messages": [user("Hi")], "input": LARGE}
            assert_told(
                await w.client.post(f"{w.base_url}/{path}", json=body, headers={"authorization": "Bearer hostile"})
            )
        others = [asyncio.ensure_future(w.post([user(LARGE)], key=f"innocent-{number}")) for number in range(2)]
        await until(lambda: len(upstream.bodies) == 4)
        gate.set()
        assert [(await one).status_code for one in (*running, *others)] == [200] * 4
        assert (await w.post([user(LARGE)], key="hostile")).status_code == 200


async def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async def pieces() -> Any:
        yield b'{"model": "m", "messages": [{"role": "user", "content": "'
        for _ in range(9):
            yield b"x" * (BODY_LIMIT // 10)
        yield b'"}]}'

    gate = asyncio.Event()
    held = Reply(completion().body, gate=gate)
    upstream = ScriptedUpstream(held, held)
    async with world(upstream, window=1_000_000, **SECTIONS) as w:
        running = [asyncio.ensure_future(w.post([user(LARGE)])) for _ in range(2)]
        await until(lambda: len(upstream.bodies) == 2)
        headers = {"authorization": "Bearer sk-one", "content-type": "application/json"}
        for path in ("chat/completions", "embeddings"):
            assert_told(await w.client.post(f"{w.base_url}/{path}", content=pieces(), headers=headers))
        gate.set()
        await asyncio.gather(*running)
