"""More requests than there are places: who waits, who is sent away, and that every place comes back. Over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.live import Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, user, world
from tests.support.raw_http import long_talk, summarizing, until

ONE = {"max_concurrent_requests": 1, "max_wait_seconds": 5}
METRICS = ("requests_admitted", "requests_waiting")


async def number(w: World, name: str, labels: str = "") -> float:
    text = (await w.client.get(w.base_url.removesuffix("/v1") + "/metrics")).text
    told = (line.rpartition(" ") for line in text.splitlines())
    return next((float(value) for series, _, value in told if series == f"concertina_{name}{labels}"), 0)


async def running_and_waiting(w: World) -> tuple[float, float]:
    return await number(w, METRICS[0]), await number(w, METRICS[1])


async def become(w: World, running: int, waiting: int) -> None:
    async with asyncio.timeout(30):
        while await running_and_waiting(w) != (running, waiting):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.005)


def held(gate: asyncio.Event, reply: Reply | None = None) -> Reply:
    reply = reply or completion()
    reply.gate = gate
    return reply


def asking(w: World, text: str, **options: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.ensure_future(w.post([user(text)], **options))


async def test_a_request_waits_for_a_place_and_is_answered() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits=ONE) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        second = asking(w, "two", stream=True)
        await become(w, 1, 1)
        assert len(upstream.bodies) == 1
        gate.set()
        assert (await first).status_code == (await second).status_code == 200
        await become(w, 0, 0)
        assert await number(w, "admission_wait_seconds_count") == 1


async def test_who_finds_neither_place_nor_room_in_the_line_is_told_when_to_come_again() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits={**ONE, "max_waiting": 0}) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        answer = await w.post([user("two")])
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (503, "server_error", "overloaded")
        assert "limits.max_concurrent_requests" in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert "x-should-retry" not in answer.headers
        assert answer.headers["x-request-id"].startswith("req_")
        assert await number(w, "refusals_total", '{reason="full"}') == 1
        gate.set()
        await first
        assert len(upstream.bodies) == 1
        assert w.rows() == 2, "nothing of what was refused is stored"


async def test_a_caller_at_its_own_bound_gets_429_while_others_are_served() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    limits = {"max_concurrent_per_tenant": 1, "max_waiting": 0}
    async with world(upstream, limits=limits) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        refused = await w.post([user("two")])
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
        assert "limits.max_concurrent_per_tenant" in error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        await w.say([user("three")], key="sk-other")
        gate.set()
        assert (await first).status_code == 200


async def test_a_noisy_caller_delays_others_by_one_request() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits=ONE) as w:
        noisy = [asking(w, f"noise {number}") for number in range(1)]
        await become(w, 1, 0)
        for count in range(1, 5):
            noisy.append(asking(w, f"noise {count}"))
            await become(w, 1, count)
        quiet = asking(w, "quiet", key="sk-quiet")
        await become(w, 1, 5)
        gate.set()
        assert (await quiet).status_code == 200
        await asyncio.gather(*noisy)
        asked = [body["messages"][-1]["content"] for body in upstream.requests]
    assert asked == ["noise 0", "noise 1", "quiet", "noise 2", "noise 3", "noise 4"]


async def test_who_waits_too_long_is_sent_away() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits={**ONE, "max_wait_seconds": 0.05}) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        answer = await w.post([user("two")])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert "0.05 seconds" in answer.json()["error"]["message"]
        await become(w, 1, 0)
        gate.set()
        await first


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_who_hangs_up_leaves_the_line(streams: bool) -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits=ONE) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        second = asking(w, "two", stream=streams)
        await become(w, 1, 1)
        second.cancel()
        await become(w, 1, 0)
        gate.set()
        await first
        await become(w, 0, 0)
        assert len(upstream.bodies) == 1
        assert w.rows() == 2


async def test_a_stream_gives_its_place_back_at_its_end_or_when_its_client_leaves() -> None:
    begun = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Half"})]
    upstream = ScriptedUpstream(stream("Fine."), Reply(pieces=[*begun, 60]))
    async with world(upstream, limits=ONE) as w:
        await w.stream([user("one")])
        await become(w, 0, 0)
        request = {"model": "m", "messages": [user("two")], "stream": True}
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request) as answer:
            lines = answer.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
            await become(w, 1, 0)
        await become(w, 0, 0)
        await w.say([user("three")])


async def test_errors_give_their_places_back() -> None:
    upstream = ScriptedUpstream(Reply({"error": {"message": "no"}}, status=400))
    async with world(upstream, limits=ONE) as w:
        assert (await w.post([user("one")])).status_code == 400
        assert (await w.post([user("x" * 200_000)])).status_code == 400
        await w.say([user("two")])


async def test_a_retry_joins_the_attempt_that_runs_and_needs_no_place() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits={**ONE, "max_waiting": 0}) as w:
        keyed = {"idempotency-key": "one"}
        first = asking(w, "one", headers=keyed)
        await become(w, 1, 0)
        again = asking(w, "one", headers={**keyed, "x-stainless-retry-count": "1"})
        await until(lambda: len(w.upstream.bodies) == 1)
        gate.set()
        assert (await first).json()["id"] == (await again).json()["id"]
        assert len(upstream.bodies) == 1


async def test_an_sdk_that_was_sent_away_comes_again_by_itself() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits={**ONE, "max_waiting": 0}) as w:
        first = asking(w, "one")
        await become(w, 1, 0)
        client = openai.AsyncOpenAI(base_url=w.base_url, api_key="sk-two", max_retries=2)
        second = asyncio.ensure_future(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "two"}])
        )
        while not await number(w, "refusals_total", '{reason="full"}'):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)
        gate.set()
        await first
        assert (await second).choices[0].message.content == "Fine."
        await client.close()


async def test_what_is_passed_through_waits_for_a_place_too() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(held(gate))
    async with world(upstream, limits={**ONE, "max_waiting": 0}) as w:
        first = asyncio.ensure_future(
            w.client.post(f"{w.base_url}/embeddings", json={"model": "m", "input": "x"}, headers={})
        )
        await become(w, 1, 0)
        assert (await w.post([user("two")])).json()["error"]["code"] == "overloaded"
        refused = await w.client.post(f"{w.base_url}/embeddings", json={"model": "m", "input": "y"})
        assert refused.json()["error"]["code"] == "overloaded"
        gate.set()
        assert (await first).status_code == 200
        await become(w, 0, 0)


async def test_a_compaction_on_request_has_a_place_until_it_is_done() -> None:
    gate = asyncio.Event()
    upstream = summarizing(summary=held(gate))
    async with world(upstream, window=128_000, limits={**ONE, "max_waiting": 0}) as w:
        body = await w.say(long_talk())
        compacting = asyncio.ensure_future(
            w.client.post(
                f"{w.base_url}/conversations/{body['conversation_id']}/compact",
                json={},
                headers={"authorization": "Bearer sk-one"},
            )
        )
        await become(w, 1, 0)
        assert (await w.post([user("two")])).status_code == 503
        gate.set()
        assert (await compacting).status_code == 200
        await become(w, 0, 0)
        assert (await w.post([user("two")])).status_code == 200
