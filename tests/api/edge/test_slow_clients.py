"""Clients that trickle, stall and do not read: each costs its own connection, and nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.api.edge.connections import ClientConnection, ClientConnections, ConnectionLimits
from tests.live import DONE, Reply, ScriptedUpstream, chunk, stream
from tests.support.gateway import World, user
from tests.support.gateway import world as a_world
from tests.support.raw_http import WAIT_SECONDS, until

QUICK = {"slow_client_seconds": 0.1, "min_bytes_per_second": 0}
PIECE = chunk({"content": "far more than any buffer holds " * 2000})
MANY = 40


class Talk:
    """A client that does as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, text: str) -> None:
        self.writer.write(text.encode())

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and body of what comes before the connection is closed."""
        async with asyncio.timeout(WAIT_SECONDS):
            received = await self.reader.read()
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        return int(head.split()[1]), json.loads(body)["error"]

    async def until_cut(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionResetError:
                pass


async def talk(w: World, *, receive_bytes: int | None = None) -> Talk:
    host, port = w.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    client = Talk(*await asyncio.open_connection(sock=connection, limit=receive_bytes or 65536))
    vars(w).setdefault("talks", []).append(client)
    return client


@asynccontextmanager
async def world(upstream: ScriptedUpstream, **options: Any) -> AsyncIterator[World]:
    """A gateway whose clients are gone in the end."""
    async with a_world(upstream, **options) as w:
        try:
            yield w
        finally:
            for client in vars(w).get("talks", ()):
                client.writer.transport.abort()


def ask_for_stream(text: str) -> str:
    body = json.dumps({"model": "m", "messages": [user(text)], "stream": True})
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}"


def head(*, length: int) -> str:
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"


async def cut(w: World, reason: str) -> float:
    text = (await w.client.get(w.base_url.removesuffix("/v1") + "/metrics")).text
    name = f'concertina_connections_cut_total{{reason="{reason}"}} '
    return next(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


class UncheckedConnections(ClientConnections):
    """Notes what opens, and does not check it by itself: the test owns the time."""

    def __init__(self, opened: list[ClientConnection], limits: ConnectionLimits) -> None:
        super().__init__(limits, check_interval_range_seconds=(3600.0, 3600.0))
        self.opened = opened

    def try_register(self, connection: ClientConnection) -> bool:
        self.opened.append(connection)
        return super().try_register(connection)


async def test_a_head_that_does_not_end_is_answered_with_408() -> None:
    async with world(ScriptedUpstream(), limits=QUICK) as w:
        client = await talk(w)
        client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        status, error = await client.answer()
        assert (status, error["code"]) == (408, "request_timeout")
        assert "limits.slow_client_seconds" in error["message"]
        assert await cut(w, "head") == 1


async def test_a_head_that_trickles_is_not_waited_for_either() -> None:
    async with world(ScriptedUpstream(), limits=QUICK) as w:
        client = await talk(w)
        client.send("GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ")
        answering = asyncio.ensure_future(client.answer())
        while not answering.done():
            client.send("x")
            await asyncio.sleep(0.01)
        assert (await answering)[0] == 408


async def test_a_body_that_stalls_is_answered_with_408_and_nothing_is_asked() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream, limits=QUICK) as w:
        client = await talk(w)
        client.send(head(length=100) + '{"model"')
        status, error = await client.answer()
        assert (status, error["code"]) == (408, "request_timeout")
        assert (upstream.bodies, w.rows()) == ([], 0)
        assert await cut(w, "body") == 1


async def test_a_body_that_trickles_below_the_least_rate_is_cut() -> None:
    limits = {"slow_client_seconds": 0.1, "min_bytes_per_second": 2000}
    async with world(ScriptedUpstream(), limits=limits) as w:
        client = await talk(w)
        client.send(head(length=10_000))
        answering = asyncio.ensure_future(client.answer())
        while not answering.done():
            client.send(" ")
            await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionError):  # a byte that crosses the answer resets the connection
            assert (await answering)[0] == 408
        assert await cut(w, "body") == 1


async def test_a_slow_body_above_the_least_rate_is_waited_for() -> None:
    body = json.dumps({"model": "m", "messages": [user("x" * 3000)]})
    opened: list[ClientConnection] = []
    unchecked, limits = functools.partial(UncheckedConnections, opened), {**QUICK, "min_bytes_per_second": 500}
    async with world(ScriptedUpstream(), limits=limits, create_connections=unchecked) as w:
        client = await talk(w)
        sent = head(length=len(body)).replace("host: x", "host: x\r\nconnection: close")
        client.send(sent)
        await until(lambda: len(opened) == 1)
        sent_bytes, seconds = len(sent), 0.0
        for start in range(0, len(body), 100):
            piece = body[start : start + 100]
            client.send(piece)
            sent_bytes += len(piece)
            await until(lambda: opened[0]._received_bytes == sent_bytes)  # noqa: B023 - it is awaited at once
            seconds += 0.15
            opened[0].cut_if_timed_out(seconds)
        assert seconds > 10 * QUICK["slow_client_seconds"]
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await client.reader.read()).startswith(b"HTTP/1.1 200")


async def test_a_body_in_chunks_without_a_length_is_bounded_too() -> None:
    async with world(ScriptedUpstream(), limits=QUICK, server={"body_limit_bytes": 10_000}) as w:
        client = await talk(w)
        client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            client.send("1388\r\n" + " " * 5000 + "\r\n")
        async with asyncio.timeout(WAIT_SECONDS):
            received = await client.reader.readuntil(b"}}")
            assert received.startswith(b"HTTP/1.1 413")
            await client.until_cut()  # the rest of it is not waited for


async def test_a_client_that_waits_for_its_answer_is_not_hurried() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[chunk({"content": "a"}), 0.5, chunk({"content": "b"}, "stop"), DONE]))
    async with world(upstream, limits=QUICK) as w:
        client = await talk(w)
        client.send(ask_for_stream("x"))
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await client.reader.readuntil(b"[DONE]")).count(b"data: ") == 3


LARGE_HEADS = {
    "address": "GET /healthz?" + "x" * 70_000 + " HTTP/1.1\r\n\r\n",
    "headers": "GET / HTTP/1.1\r\n" + "a: b\r\n" * 20_000 + "\r\n",
    "header": "GET / HTTP/1.1\r\na: " + "x" * 70_000 + "\r\n\r\n",
}


@pytest.mark.parametrize("sent", LARGE_HEADS.values(), ids=LARGE_HEADS)
async def test_a_head_that_is_too_large_is_refused(sent: str) -> None:
    async with world(ScriptedUpstream()) as w:
        client = await talk(w)
        client.send(sent)
        status, error = await client.answer()
        assert (status, error["code"]) == (431, "request_head_too_large")
        assert (await w.client.get(w.base_url.removesuffix("/v1") + "/healthz")).status_code == 200


async def test_one_header_that_never_ends_is_refused_before_it_fills_memory() -> None:
    async with world(ScriptedUpstream()) as w:
        client = await talk(w)
        client.send("GET /healthz HTTP/1.1\r\nx-long: ")
        cutting = asyncio.ensure_future(client.until_cut())
        while not cutting.done():
            client.send("x" * 10_000)
            await asyncio.sleep(0)
        assert await cut(w, "large_head") == 1


async def test_too_many_connections_are_told_so() -> None:
    async with world(ScriptedUpstream(), limits={"max_connections": 2}) as w:
        await w.say([user("one")])
        first = await talk(w)
        first.send("GET /heal")
        second = await talk(w)
        status, error = await second.answer()
        assert (status, error["code"]) == (503, "overloaded")
        first.writer.close()
        await w.say([user("two")])


async def test_a_client_that_does_not_read_is_cut_and_its_answer_is_stored() -> None:
    words = ["far more than any buffer holds " * 400 for _ in range(2000)]
    async with world(ScriptedUpstream(stream(*words)), limits=QUICK) as w:
        client = await talk(w, receive_bytes=4096)
        client.send(ask_for_stream("x"))
        await until(lambda: w.rows() == 2)
        (conversation,) = w.conversations()
        (_, kept) = await w.store.read_log(conversation, 0, 2)
        assert (kept.message.text, kept.incomplete) == ("".join(words), False)
        assert await cut(w, "reader") == 1
        await client.until_cut()


@pytest.mark.timeout(300)
async def test_many_clients_that_do_not_read_hold_no_more_than_buffers() -> None:
    """Each is sent 64 MB; what is held for one is some hundred kilobytes beside the beginning of its answer."""
    sent = 0

    class Pieces(list[bytes]):
        def __iter__(self) -> Any:
            nonlocal sent
            yield chunk({"role": "assistant", "content": ""})
            for _ in range(1024):
                sent += len(PIECE)
                yield PIECE

    upstream = ScriptedUpstream(default=lambda _: Reply(pieces=Pieces()))
    limits = {"slow_client_seconds": 600}
    async with world(upstream, limits=limits) as w:
        tracemalloc.start()
        try:
            clients = [await talk(w, receive_bytes=4096) for _ in range(MANY)]
            before, _ = tracemalloc.get_traced_memory()
            for number, client in enumerate(clients):
                client.send(ask_for_stream(f"question {number}"))
            await until(lambda: len(upstream.bodies) == MANY)
            stalled = -1
            while stalled != sent:
                stalled = sent
                await asyncio.sleep(1.0)  # a busy machine lets none of them go on for a while
            held_bytes = (tracemalloc.get_traced_memory()[0] - before) / MANY
        finally:
            tracemalloc.stop()
        assert sent < MANY * 1024 * len(PIECE) / 4, "the upstream is read on although nobody reads the answers"
        assert held_bytes < 1.25 * sent / MANY, "more than the answers as far as they came"
