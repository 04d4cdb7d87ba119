"""Connections of our own: what frames an answer, what is refused, how much is held, and when they are kept."""

from __future__ import annotations

import asyncio
import gc
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import brotli
import pytest
from aiohttp.client_proto import ResponseHandler
from backports import zstd

from app.errors import UpstreamUnavailable
from app.upstream.http import aiohttp_transport
from app.upstream.http.http_client_contract import HttpTimeouts
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import AnswerTimedOut, ConnectionDropped, UpstreamRequest
from tests.upstream.http.loopback_server import END, HEAD, Loopback, Received, Script, chunked, loopback, whole

CHAT = UpstreamRequest("/chat/completions", b'{"model":"m"}')
OK = whole(b"{}")
READ_AHEAD_BYTES = 1024 * 1024
"""The most of an answer that lies unread here: aiohttp's buffer, and what the socket gave at once."""


@asynccontextmanager
async def provider_at(
    script: Script, timeouts: HttpTimeouts | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[OpenAIProvider, Loopback]]:
    """A provider; once it is closed no connection of it is left."""
    async with loopback(script, host=host) as server:
        provider = OpenAIProvider("test", server.url, "secret", timeouts)
        try:
            yield provider, server
        finally:
            await provider.aclose()
            gc.collect()
            assert [
                found for found in gc.get_objects() if type(found) is ResponseHandler and found.is_connected()
            ] == []


def says(*parts: bytes) -> Script:
    """Answers every request with the same bytes, each part a write of its own."""

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return script


async def read(provider: OpenAIProvider, call: UpstreamRequest = CHAT) -> bytes:
    reply = await provider.send(call)
    try:
        return await reply.read()
    finally:
        await reply.aclose()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="two framings"),
        pytest.param(b"Content-Length: 5\r\nContent-Length: 6\r\n", id="two lengths"),
        pytest.param(b"Content-Length: -5\r\n", id="negative length"),
        pytest.param(b"Transfer-Encoding: gzip, chunked\r\n", id="coding nobody asked for"),
        pytest.param(b"Transfer-Encoding: chunked, identity\r\n", id="chunked not last"),
        pytest.param(b"X: a\r\n folded: b\r\nContent-Length: 0\r\n", id="folded line"),
        pytest.param(b"X: a\rb\r\nContent-Length: 0\r\n", id="bare CR"),
    ],
)
async def test_an_answer_that_is_framed_in_doubt_is_refused(head: bytes) -> None:
    sent = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n0\r\n\r\n"
    async with provider_at(says(sent)) as (provider, server):
        with pytest.raises(UpstreamUnavailable, match="The call to provider 'test' failed: ") as caught:
            await provider.send(CHAT)
        assert not isinstance(caught.value, ConnectionDropped)
        # A complete answer leaves its connection in order, whatever its coding is called.
        if b"gzip" not in head:
            async with asyncio.timeout(10):
                await server.gone.wait()


async def test_headers_and_trailers_without_end_are_refused() -> None:
    lines = [b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(600)]
    async with provider_at(says(b"HTTP/1.1 200 OK\r\n", *lines)) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="headers of its answer are too long"):
            await provider.send(CHAT)
    async with provider_at(says(HEAD, chunked(b"a"), b"0\r\n", *lines)) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            await read(provider)


async def test_what_only_informs_does_not_do_so_for_ever() -> None:
    async def hint(_: Received, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 500)
            await writer.drain()

    async with provider_at(hint, HttpTimeouts(first_byte_seconds=0.1)) as (provider, _):
        with pytest.raises(AnswerTimedOut):
            await provider.send(CHAT)


async def test_a_switch_of_protocols_is_refused() -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with provider_at(says(switched)) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="not HTTP"):
            await provider.send(CHAT)


async def test_a_second_answer_that_nobody_asked_for_reaches_nobody() -> None:
    stuffed = whole(b'{"of":"one"}') + whole(b'{"of":"another"}')
    async with provider_at(says(stuffed)) as (provider, server):
        assert [await read(provider) for _ in range(3)] == [b'{"of":"one"}'] * 3

    assert server.connections == 3


async def test_a_connection_on_which_something_comes_unasked_is_closed_at_the_next_call() -> None:
    writers = []

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(OK)

    async with provider_at(script) as (provider, server):
        await read(provider)
        writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(0.05)
        assert await read(provider) == b"{}"
        async with asyncio.timeout(10):
            await server.gone.wait()

    assert server.connections == 2


async def test_trailers_are_not_headers_of_the_next_answer() -> None:
    sent = HEAD + chunked(b"a") + b"0\r\nX-Secret: theirs\r\nContent-Encoding: gzip\r\n\r\n"
    async with provider_at(says(sent)) as (provider, server):
        for _ in range(2):
            reply = await provider.send(CHAT)
            assert await reply.read() == b"a"
            assert dict(reply.headers) == {"content-type": "text/event-stream"}

    assert server.connections == 1


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(b"x" * 3_000_000)),
        (b"gzip", gzip.compress(b"x" * 1_000_000) + gzip.compress(b"x" * 2_000_000)),
        (b"deflate", zlib.compress(b"x" * 3_000_000)),
        (b"Deflate", zlib.compress(b"x" * 3_000_000, wbits=-15)),
        (b"zstd", zstd.compress(b"x" * 3_000_000)),
        (b"zstd", zstd.compress(b"x" * 1_000_000) + zstd.compress(b"x" * 2_000_000)),
        (b"br", brotli.compress(b"x" * 3_000_000)),
    ],
    ids=["gzip", "two members", "deflate", "deflate without a head", "zstd", "two frames", "br"],
)
async def test_what_is_compressed_unasked_is_inflated_in_pieces(encoding: bytes, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body))
    async with provider_at(says(head + body[:100], body[100:])) as (provider, _):
        reply = await provider.send(CHAT)
        pieces = [piece async for piece in reply.iter_bytes()]
        assert b"".join(pieces) == b"x" * 3_000_000
        assert max(map(len, pieces)) <= 1024 * 1024
        assert not reply.headers


@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"{}" * 100)[:-9], b"\x1f\x8b not gzip", b"plain"],
    ids=["cut short", "no gzip", "plain"],
)
async def test_what_cannot_be_inflated_is_broken_off(body: bytes) -> None:
    async with provider_at(says(whole(body, headers=b"Content-Encoding: gzip\r\n"))) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            await read(provider)


async def test_an_encoding_that_is_not_undone_is_refused() -> None:
    async with provider_at(says(whole(b"x", headers=b"Content-Encoding: compress\r\n"))) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="has the encoding 'compress'"):
            await provider.send(CHAT)


async def test_an_answer_to_head_has_no_body_whatever_it_announces() -> None:
    async with provider_at(says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")) as (provider, _):
        reply = await provider.send(UpstreamRequest("/files", method="HEAD"))
        assert (reply.status, await reply.read()) == (200, b"")


async def test_an_answer_of_http_1_0_ends_with_its_connection() -> None:
    async def old(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nold")
        writer.close()

    async with provider_at(old) as (provider, server):
        assert [await read(provider), await read(provider)] == [b"old", b"old"]

    assert server.connections == 2


async def test_lines_may_end_without_cr() -> None:
    async with provider_at(says(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok")) as (provider, _):
        assert await read(provider) == b"ok"


async def test_a_slow_reader_holds_the_server_back() -> None:
    """64 MB would come; what lies here and in the sockets' buffers is a fraction of it."""
    sent_bytes = 0

    async def pour(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(HEAD)
        for _piece in range(256):
            writer.write(chunked(bytes(256 * 1024)))
            await writer.drain()
            sent_bytes += 256 * 1024
        writer.write(END)

    async with provider_at(pour) as (provider, _):
        reply = await provider.send(CHAT)
        pieces = reply.iter_bytes()
        assert len(await anext(pieces)) <= READ_AHEAD_BYTES
        before = -1
        while sent_bytes != before:
            before = sent_bytes
            await asyncio.sleep(0.02)
        assert sent_bytes < 32 * 1024 * 1024
        rest = [len(piece) async for piece in pieces]
        assert max(rest) <= READ_AHEAD_BYTES
        await reply.aclose()

    assert sent_bytes == 64 * 1024 * 1024


async def test_a_slow_reader_is_no_silence() -> None:
    is_read = asyncio.Event()

    async def in_two(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"a"))
        await is_read.wait()
        writer.write(chunked(b"b") + END)

    timeouts = HttpTimeouts(first_byte_seconds=0.05, between_bytes_seconds=0.05)
    async with provider_at(in_two, timeouts) as (provider, _):
        pieces = (await provider.send(CHAT)).iter_bytes()
        assert await anext(pieces) == b"a"
        await asyncio.sleep(0.12)
        is_read.set()
        assert [piece async for piece in pieces] == [b"b"]


async def test_all_that_has_come_is_one_piece() -> None:
    async with provider_at(says(HEAD + b"".join(map(chunked, [b"data: a\n\n"] * 100)) + END)) as (provider, _):
        reply = await provider.send(CHAT)
        assert [piece async for piece in reply.iter_bytes()] == [b"data: a\n\n" * 100]


async def test_a_connection_that_nobody_needs_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "IDLE_CONNECTION_SECONDS", 0.05)
    async with provider_at(says(OK)) as (provider, server):
        await read(provider)
        async with asyncio.timeout(10):
            await server.gone.wait()
        assert await read(provider) == b"{}"

    assert server.connections == 2


async def test_the_connection_used_last_is_used_first() -> None:
    async with provider_at(says(OK)) as (provider, server):
        await asyncio.gather(*(read(provider) for _ in range(5)))
        assert server.connections == 5
        for _ in range(10):
            await read(provider)

    assert server.connections == 5


async def test_a_thousand_calls_at_once_are_answered_each_with_its_own() -> None:
    async def echo(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(received.body[:5]))
        await asyncio.sleep(0.01)
        writer.write(chunked(received.body[5:]) + END)

    async with provider_at(echo) as (provider, server):
        bodies = [b"body %d" % number * 10 for number in range(1000)]
        answers = await asyncio.gather(*(read(provider, UpstreamRequest(CHAT.path, body)) for body in bodies))
        assert answers == bodies

    assert server.connections <= 1000


async def test_closing_ends_calls_that_are_under_way() -> None:
    arrived = asyncio.Event()

    async def silent(_: Received, __: asyncio.StreamWriter) -> None:
        arrived.set()

    async with provider_at(silent) as (provider, _):
        sending = asyncio.ensure_future(provider.send(CHAT))
        await arrived.wait()
        await provider.aclose()
        with pytest.raises(ConnectionDropped):
            await sending


async def test_a_server_may_have_an_ipv6_address() -> None:
    async with provider_at(says(OK), host="::1") as (provider, server):
        assert await read(provider) == b"{}"

    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


async def test_the_next_address_is_tried_where_the_first_refuses() -> None:
    async with loopback(says(OK)) as server:
        provider = OpenAIProvider("test", f"http://localhost:{server.port}")
        assert [await read(provider) for _ in range(2)] == [b"{}"] * 2
        await provider.aclose()


async def test_a_connection_that_takes_too_long_is_given_up() -> None:
    """The queue of connections to be accepted is full: the next one's handshake stays unanswered."""
    async with full_queue() as port:
        provider = OpenAIProvider("test", f"http://127.0.0.1:{port}", timeouts=HttpTimeouts(connect_seconds=0.1))
        with pytest.raises(UpstreamUnavailable, match="could not be reached in time") as caught:
            await provider.send(CHAT)
        assert caught.value.status == 504
        await provider.aclose()


async def test_the_limit_of_the_whole_call_holds_while_connecting_too() -> None:
    async with full_queue() as port:
        provider = OpenAIProvider("test", f"http://127.0.0.1:{port}", timeouts=HttpTimeouts(total_seconds=0.1))
        with pytest.raises(UpstreamUnavailable, match="did not answer in time") as caught:
            await provider.send(CHAT)
        assert caught.value.status == 504
        await provider.aclose()


@asynccontextmanager
async def full_queue() -> AsyncIterator[int]:
    """A port whose handshakes are not answered any more."""
    loop = asyncio.get_running_loop()
    with aiohttp_transport.make_keepalive_socket(_ADDRESS) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [aiohttp_transport.make_keepalive_socket(_ADDRESS) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
        connects = [asyncio.ensure_future(loop.sock_connect(each, listening.getsockname())) for each in waiting]
        await asyncio.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            for connect in connects:
                connect.cancel()
            await asyncio.gather(*connects, return_exceptions=True)
            for each in waiting:
                each.close()


_ADDRESS = (2, 1, 6, "", ("127.0.0.1", 0))


async def test_a_reader_that_was_too_slow_for_the_whole_gets_what_has_come_and_then_the_error() -> None:
    """The limit strikes while reading is paused: what was read already is given out, and nothing is resumed."""

    async def pour(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            writer.write(chunked(bytes(64 * 1024)))
            await writer.drain()

    async with provider_at(pour, HttpTimeouts(total_seconds=0.1)) as (provider, _):
        pieces = (await provider.send(CHAT)).iter_bytes()
        await asyncio.sleep(0.2)
        assert await anext(pieces)
        with pytest.raises(UpstreamUnavailable, match="stopped sending"):
            await anext(pieces)
