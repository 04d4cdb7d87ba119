"""Clients of passed-through requests that hang up: the call ends with them, and their place is free at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.admission.test_admission_over_http import become
from tests.support.gateway import World, user, world

WAIT_SECONDS = 30
"""For what happens at once or never: none of the providers here ends its answer by itself."""
LARGE = "x" * 3_000_000


async def leave(asking: asyncio.Task[Any]) -> None:
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def gone(w: World, upstream: ScriptedUpstream) -> None:
    """The call and the place are free when the client has left, and the next request is served."""
    async with asyncio.timeout(WAIT_SECONDS):
        await upstream.left.wait()
    await become(w, 0, 0)
    upstream.replies = [completion()]
    assert (await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"})).status_code == 200


@pytest.mark.parametrize("said", ["x", LARGE], ids=["short", "large"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_the_answer_ends_the_call(
    said: str,
    streams: bool,
) -> None:
    upstream = ScriptedUpstream(Reply({}, gate=asyncio.Event()))
    async with world(upstream, limits={"max_concurrent_requests": 1}) as w:
        body = {"model": "m", "input": said, "stream": streams}
        asking = asyncio.ensure_future(w.client.post(f"{w.base_url}/completions", json=body))
        await become(w, 1, 0)
        async with asyncio.timeout(WAIT_SECONDS):
            while not upstream.bodies:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)
        await leave(asking)
        await gone(w, upstream)


async def test_a_client_that_leaves_in_a_stream_ends_the_call() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[b"data: {}\n\n", 10 * WAIT_SECONDS]))
    async with world(upstream, limits={"max_concurrent_requests": 1}) as w:
        body = {"model": "m", "stream": True}
        async with w.client.stream("POST", f"{w.base_url}/completions", json=body) as answer:
            lines = answer.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
            await become(w, 1, 0)
        await gone(w, upstream)


async def test_a_client_that_leaves_while_its_body_goes_upstream_ends_the_call() -> None:
    """The provider accepts the connection and reads nothing."""
    may_read, ended = asyncio.Event(), asyncio.Event()

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        try:
            while await reader.read(1_000_000):
                pass
        except ConnectionError:
            pass
        ended.set()
        writer.close()

    server = await asyncio.start_server(read_nothing, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    providers = {"upstream": {"base_url": f"http://127.0.0.1:{port}/v1"}}
    async with server, world(ScriptedUpstream(), providers=providers) as w:
        body = {"model": "m", "input": LARGE * 6}
        asking = asyncio.ensure_future(w.client.post(f"{w.base_url}/embeddings", json=body))
        await become(w, 1, 0)
        await leave(asking)
        await become(w, 0, 0)
        may_read.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await ended.wait()


async def test_a_client_that_leaves_while_it_sends_its_body_takes_no_place() -> None:
    upstream = ScriptedUpstream()
    sent = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        sent.set()
        await asyncio.sleep(60)

    async with world(upstream) as w:
        asking = asyncio.ensure_future(w.client.post(f"{w.base_url}/files", content=half()))
        async with asyncio.timeout(WAIT_SECONDS):
            await sent.wait()
        await become(w, 0, 0)
        await leave(asking)
        await become(w, 0, 0)
    assert upstream.bodies == []


async def test_a_client_that_leaves_the_line_is_not_served() -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(Reply({}, gate=gate))
    async with world(upstream, limits={"max_concurrent_requests": 1}) as w:
        first = asyncio.ensure_future(w.post([user("x")]))
        await become(w, 1, 0)
        asking = asyncio.ensure_future(w.client.post(f"{w.base_url}/embeddings", json={"model": "m"}))
        await become(w, 1, 1)
        await leave(asking)
        await become(w, 1, 0)
        gate.set()
        await first
        await become(w, 0, 0)
    assert len(upstream.bodies) == 1
