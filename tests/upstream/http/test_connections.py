"""No answer reaches a call that it is not for, and no connection is lost."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.client_proto import ResponseHandler

from app.errors import UpstreamUnavailable
from app.upstream.http import aiohttp_transport
from app.upstream.http.http_client_contract import HttpTimeouts
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import ConnectionDropped, UpstreamRequest
from tests.upstream.http.certificates import certified
from tests.upstream.http.loopback_server import HEAD, Received, Script, chunked, loopback, whole

CHAT = UpstreamRequest("/chat/completions", b'{"model":"m"}')
LONG = UpstreamRequest("/chat/completions", bytes(8_000_000))
ONE, OTHER = whole(b'{"of":"one"}'), whole(b'{"of":"another"}')


@asynccontextmanager
async def provider_at(url: str, timeouts: HttpTimeouts | None = None, **more: object) -> AsyncIterator[OpenAIProvider]:
    """A provider; once it is closed it has left no connection behind."""
    provider = OpenAIProvider("test", url, "secret", timeouts, **more)  # type: ignore[arg-type]
    try:
        yield provider
    finally:
        await provider.aclose()


async def read(provider: OpenAIProvider, call: UpstreamRequest = CHAT) -> bytes:
    reply = await provider.send(call)
    try:
        return await reply.read()
    finally:
        await reply.aclose()


def says(*parts: bytes) -> Script:
    """Answers every request with the same bytes, each part a write of its own."""

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return script


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(ONE + OTHER, ONE, id="a whole one"),
        pytest.param(ONE + OTHER[:30], OTHER[30:] + ONE, id="one that goes on with the next call"),
        pytest.param(ONE + OTHER[:30], ONE, id="the beginning of one"),
    ],
)
async def test_an_answer_that_nobody_asked_for_reaches_nobody(first: bytes, second: bytes) -> None:
    answers = [first, second, ONE]

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with loopback(script) as server, provider_at(server.url) as provider:
        said = [(await asyncio.gather(read(provider), return_exceptions=True))[0] for _ in range(3)]
        assert [said[0], said[2]] == [b'{"of":"one"}'] * 2
        assert said[1] == b'{"of":"one"}' or isinstance(said[1], UpstreamUnavailable)
        assert server.connections <= 2


async def test_an_answer_in_a_tls_record_of_its_own_reaches_nobody_either(tmp_path: Path) -> None:
    of_server, of_client = certified(tmp_path)

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.writelines([ONE])
        writer.write(OTHER)

    async with loopback(script, tls=of_server) as server, provider_at(server.url, ssl_context=of_client) as provider:
        answers = [await asyncio.gather(read(provider), return_exceptions=True) for _ in range(6)]
    assert [answer for (answer,) in answers if not isinstance(answer, ConnectionDropped)] != []
    assert {answer for (answer,) in answers if isinstance(answer, bytes)} == {b'{"of":"one"}'}


async def test_what_comes_while_a_connection_is_idle_ends_it() -> None:
    writers = []

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(ONE)

    async with loopback(script) as server, provider_at(server.url) as provider:
        await read(provider)
        writers[0].write(OTHER)
        await asyncio.sleep(0.05)
        assert await read(provider) == b'{"of":"one"}'
        assert server.connections == 2


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", id="two framings"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", id="coding nobody asked for"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", id="upgrade"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: %b\r\n" % (b"x" * 1000) * 200, id="head without end"),
    ],
)
async def test_an_answer_in_doubt_is_refused_and_its_connection_closed(head: bytes) -> None:
    async with loopback(says(head + b"0\r\n\r\n")) as server, provider_at(server.url) as provider:
        with pytest.raises(UpstreamUnavailable, match="The call to provider 'test' failed: ") as caught:
            await provider.send(CHAT)
        assert not isinstance(caught.value, ConnectionDropped)
        # A complete answer leaves its connection in order, whatever its coding is called.
        if b"gzip" not in head:
            async with asyncio.timeout(10):
                await server.gone.wait()


async def test_an_answer_that_only_informs_does_not_end_a_long_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        size = 0
        while size < len(LONG.body):
            size += len(await reader.read(65_536))
        writer.write(whole(b"%d" % size))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with provider_at(url) as provider:
            assert await read(provider, LONG) == b"8000000"


async def test_a_proxy_that_never_connects_is_given_up_in_the_time_for_connecting() -> None:
    timeouts = HttpTimeouts(connect_seconds=0.5, first_byte_seconds=20)
    async with loopback(says()) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        async with provider_at("https://127.0.0.1:1/v1", timeouts, proxy=proxy) as provider:
            with pytest.raises(UpstreamUnavailable, match="could not be reached in time") as caught:
                await provider.send(CHAT)
            assert type(caught.value) is UpstreamUnavailable
            async with asyncio.timeout(10):
                await server.gone.wait()


@pytest.mark.parametrize("by", ["timeout", "cancellation"])
async def test_a_tls_handshake_that_is_given_up_leaves_no_connection(by: str) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        while await reader.read(65_536):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with provider_at(url, HttpTimeouts(connect_seconds=0.5 if by == "timeout" else 30)) as provider:
            sending = asyncio.ensure_future(provider.send(CHAT))
            await begun.wait()
            if by == "cancellation":
                sending.cancel()
            (outcome,) = await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(outcome, UpstreamUnavailable if by == "timeout" else asyncio.CancelledError)
            gc.disable()  # it would close what was forgotten
            try:
                async with asyncio.timeout(10):
                    await gone.wait()
            finally:
                gc.enable()


async def test_the_connection_to_a_proxy_notices_that_its_other_end_is_gone() -> None:
    async with loopback(says(ONE)) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        async with provider_at("http://provider.example/v1", proxy=proxy) as provider:
            reply = await provider.send(CHAT)
            (made,) = [
                each.transport.get_extra_info("socket")
                for each in gc.get_objects()
                if type(each) is ResponseHandler and each.transport is not None
            ]
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            await reply.aclose()


async def test_many_calls_at_once_get_each_its_own_answer_in_time_that_grows_with_their_number() -> None:
    async def echo(received: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(whole(received.body))

    async def call_all(provider: OpenAIProvider, count: int) -> float:
        started = time.process_time()
        bodies = [b"%d" % number for number in range(count)]
        answers = await asyncio.gather(*(read(provider, UpstreamRequest(CHAT.path, body)) for body in bodies))
        assert answers == bodies
        return time.process_time() - started

    async with loopback(echo) as server, provider_at(server.url) as provider:
        await call_all(provider, 400)
        assert server.connections <= 400
        few = min([await call_all(provider, 40) for _ in range(5)])
        many = min([await call_all(provider, 400) for _ in range(3)])
        print(f"40 calls at once: {few * 1000:.0f} ms of processor time, 400: {many * 1000:.0f} ms")
        assert many < 25 * few
        assert server.connections <= 400


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("is_kept", [False, True], ids=["new connection", "kept connection"])
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_post_that_is_read_and_dropped_is_sent_once_and_never_told_as_not_sent(
    is_reset: bool, is_kept: bool, has_proxy: bool
) -> None:
    """Told as not sent, it would be sent again, and billed twice."""

    async def read_and_drop(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) <= is_kept:
            writer.write(ONE)
        elif is_reset:
            writer.transport.abort()
        else:
            writer.close()

    async with loopback(read_and_drop) as server:
        url = "http://provider.example/v1" if has_proxy else server.url
        proxy = f"http://127.0.0.1:{server.port}" if has_proxy else None
        async with provider_at(url, proxy=proxy) as provider:
            if is_kept:
                await read(provider)
            with pytest.raises(ConnectionDropped, match="closed the connection without an answer"):
                await provider.send(CHAT)
            await asyncio.sleep(0.05)
        assert [request.body for request in server.requests] == [CHAT.body] * (1 + is_kept)
        assert server.connections == 1


async def test_a_long_post_that_is_dropped_half_read_is_sent_once() -> None:
    connections = 0

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readexactly(1_000_000)
        writer.transport.abort()

    async with await asyncio.start_server(drop, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with provider_at(url) as provider:
            with pytest.raises(ConnectionDropped):
                await provider.send(LONG)
            await asyncio.sleep(0.05)
    assert connections == 1


async def test_500_calls_at_once_do_not_wait_for_each_other() -> None:
    all_are_here = asyncio.Event()

    async def answer_when_all_are_here(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 500:
            all_are_here.set()
        await all_are_here.wait()
        writer.write(ONE)

    async with asyncio.timeout(60), loopback(answer_when_all_are_here) as server, provider_at(server.url) as provider:
        assert await asyncio.gather(*(read(provider) for _ in range(500))) == [b'{"of":"one"}'] * 500
        assert server.connections == 500


@pytest.mark.parametrize("size", [200_000, 2_000_000, 20_000_000])
async def test_an_early_refusal_of_a_long_body_arrives(size: int) -> None:
    async def refuse_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"too long", "413 Content Too Large", b"Connection: close\r\n"))
        await writer.drain()
        await is_read.wait()
        writer.close()

    is_read = asyncio.Event()
    async with asyncio.timeout(60), await asyncio.start_server(refuse_unread, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with provider_at(url) as provider:
            reply = await provider.send(UpstreamRequest(CHAT.path, bytes(size)))
            assert (reply.status, await reply.read()) == (413, b"too long")
            await reply.aclose()
        is_read.set()


async def test_an_idle_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(ONE)

    monkeypatch.setattr(aiohttp_transport, "IDLE_CONNECTION_SECONDS", 0.05)
    async with loopback(slow) as server, provider_at(server.url) as provider:
        await asyncio.gather(*(read(provider) for _ in range(3)))
        assert server.connections == 3
        await asyncio.sleep(0.1)
        await read(provider)
        assert server.connections == 4


async def test_closing_the_client_ends_calls_under_way() -> None:
    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))

    async with loopback(endless) as server:
        provider = OpenAIProvider("test", server.url)
        pieces = (await provider.send(CHAT)).iter_bytes()
        assert await anext(pieces) == b"data: a\n\n"
        await provider.aclose()
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            await anext(pieces)
        async with asyncio.timeout(10):
            await server.gone.wait()
