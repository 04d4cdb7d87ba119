"""Four tenants share a gateway and a provider, and one of them does its worst: the others' answers do not fail."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.upstream.provider_contract import ANSWER_LIMIT_BYTES
from tests.harness import Process
from tests.live import Reply, ScriptedUpstream, chunk, completion, serving

INNOCENT = ("ann", "bob", "cyd")
TURNS = 40
ROUNDS = 3
ALLOWED_SECONDS = 0.5
"""Added to twice the time alone: this process, too, plays the provider and all clients on a machine that is shared."""
OVERFLOW = {
    "error": {"code": "context_length_exceeded", "message": "This model's maximum context length is 99 tokens."}
}


def answer(body: dict[str, Any]) -> Reply:
    """What the provider makes of a prompt: the hostile tenant's are faults by name."""
    text = str(body["messages"][-1]["content"])[:20]
    if text.startswith("fail"):
        return Reply({"error": {"message": "Down."}}, 500)
    if text.startswith("overflow"):
        return Reply(OVERFLOW, 400)
    if text.startswith("hang"):
        return Reply(gate=asyncio.Event())
    if text.startswith("drown"):
        return Reply(pieces=[chunk({"content": "word " * 4000})] * 50)
    return completion()


@asynccontextmanager
async def shared_gateway(folder: Path, upstream: Any, **sections: Any) -> AsyncIterator[Process]:
    """A gateway process before a scripted provider."""
    async with serving(upstream, lifespan="off") as address:
        settings = {
            "server": {"port": 0},
            "database": {"url": f"sqlite+aiosqlite:///{folder}/concertina.db"},
            "providers": {"upstream": {"base_url": f"{address}/v1"}},
            "models": {"*": {"provider": "upstream", "context_window": 8192}},
            "retries": {"base_seconds": 0.01},
            **sections,
        }
        file = folder / "concertina.yaml"
        file.write_text(json.dumps(settings))
        gateway = await asyncio.to_thread(Process, "serve", "--config", str(file))
        try:
            yield gateway
        finally:
            await asyncio.to_thread(gateway.stop)


async def post(client: httpx.AsyncClient, key: str, text: str, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def talk(client: httpx.AsyncClient, key: str) -> list[float]:
    """Takes turns that must be answered; returns how long each took."""
    seconds = []
    for number in range(TURNS):
        began = time.monotonic()
        reply = await post(client, key, f"Turn {number}")
        assert (reply.status_code, key) == (200, key), reply.text
        seconds.append(time.monotonic() - began)
    return seconds


async def talk_all(client: httpx.AsyncClient) -> float:
    """Returns the p99 of all turns of the innocent tenants."""
    talks = await asyncio.gather(*(talk(client, key) for key in INNOCENT))
    seconds = sorted(itertools.chain.from_iterable(talks))
    return seconds[int(len(seconds) * 0.99)]


async def repeat(send: Callable[[int], Awaitable[Any]]) -> None:
    number = 0
    while True:
        number += 1
        try:
            await send(number)
        except httpx.HTTPError:
            await asyncio.sleep(0.01)


async def attack(client: httpx.AsyncClient, text: str, number: int) -> None:
    """Sends a prompt of the hostile tenant; `#` in it is its number."""
    await post(client, "hostile", text.replace("#", str(number)))


async def leave_unread(client: httpx.AsyncClient, number: int) -> None:
    """Asks for a long stream and does not read it."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"drown {number}"}]}
    headers = {"authorization": "Bearer hostile"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers):
        await asyncio.sleep(0.5)


async def test_a_hostile_tenant_makes_no_answer_of_the_others_fail(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=answer)
    async with shared_gateway(tmp_path, upstream) as gateway:
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(base_url=gateway.address, timeout=60, limits=limits)
        async with client, httpx.AsyncClient(base_url=gateway.address, timeout=60, limits=limits) as hostile:
            await talk_all(client)
            for number in range(10):
                await post(hostile, "hostile", f"fail {number}")
            alone = await talk_all(client)
            texts = ["fail #", "fail always the same", "overflow #", "huge " + "x" * 5_000_000, *["flood #"] * 3]
            texts += [f"hang {number} #" for number in range(50)]
            attacks = [functools.partial(attack, hostile, text) for text in texts]
            attacks.append(functools.partial(leave_unread, hostile))
            tasks = [asyncio.ensure_future(repeat(send)) for send in attacks]
            try:
                await asyncio.sleep(1)
                # What a tenant does to others it does each time; what else the machine does comes and goes.
                beside = min([await talk_all(client) for _ in range(ROUNDS)])
                assert (await client.get("/readyz")).status_code == 200
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    print(f"p99 alone {alone * 1000:.0f} ms, beside the hostile tenant {beside * 1000:.0f} ms")
    assert beside < 2 * alone + ALLOWED_SECONDS


class EndlessProvider:
    """Answers each call of a model with a stream that never ends, and keeps count of it."""

    def __init__(self, pause_seconds: float) -> None:
        self.sent_bytes = 0
        self.gone = asyncio.Event()
        self._pause_seconds = pause_seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_call = scope["method"] == "POST"
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200 if is_call else 404, "headers": headers})
        if not is_call:
            await send({"type": "http.response.body", "body": b""})
            return
        piece = chunk({"content": "word " * 2000}) * 10
        sending = asyncio.ensure_future(self._send_for_ever(piece, send))
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        self.gone.set()

    async def _send_for_ever(self, piece: bytes, send: Any) -> None:
        while True:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            self.sent_bytes += len(piece)
            await asyncio.sleep(self._pause_seconds)


async def open_unread_stream(gateway: Process, path: str) -> socket.socket:
    parts = urlsplit(gateway.address)
    body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
    connection = socket.create_connection((parts.hostname or "", parts.port or 0))
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


async def test_a_stream_that_nobody_reads_and_that_never_ends_is_cut(tmp_path: Path) -> None:
    provider = EndlessProvider(0)
    async with shared_gateway(tmp_path, provider, limits={"slow_client_seconds": 1}) as gateway:
        with await open_unread_stream(gateway, "chat/completions"):
            async with asyncio.timeout(60):
                await provider.gone.wait()
    assert provider.sent_bytes < ANSWER_LIMIT_BYTES + 16 * 1024 * 1024


async def test_a_stop_ends_a_stream_that_never_ends(tmp_path: Path) -> None:
    for path in ("chat/completions", "completions"):
        provider = EndlessProvider(0.05)
        folder = tmp_path / path.replace("/", "-")
        folder.mkdir()
        sections = {"server": {"port": 0, "drain_seconds": 1}, "limits": {"slow_client_seconds": 1}}
        async with shared_gateway(folder, provider, **sections) as gateway:
            with await open_unread_stream(gateway, path):
                await asyncio.sleep(3)
                gateway.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(gateway.process.wait, 15) == 0
