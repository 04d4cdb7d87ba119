"""A compressed answer is inflated off the event loop and within bounds, whole and streamed."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client import HttpClient
from app.upstream.http.http_client_contract import HttpTimeouts, RequestHead
from app.upstream.provider_contract import ANSWER_LIMIT_BYTES, UpstreamReply

MB = 1024 * 1024
LONGEST_STEP_SECONDS = 0.05
"""Of processor time that the loop's thread takes in one go; inflating 60 MB takes several times as long."""


def zipped(size: int) -> bytes:
    """Zeros as gzip, made piece by piece."""
    packing = zlib.compressobj(wbits=31)
    piece = bytes(MB)
    return b"".join([*(packing.compress(piece) for _ in range(size // MB)), packing.flush()])


async def take(
    body: bytes,
    read: Callable[[UpstreamReply], Awaitable[int]],
    *,
    encoding: str = "gzip",
    limit_bytes: int = ANSWER_LIMIT_BYTES,
) -> tuple[int, float]:
    """Have an answer read.

    Returns:
        What `read` gave, and the longest step of the loop's thread in seconds of processor time.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            try:
                await asyncio.sleep(0.001)
            finally:
                longest = max(longest, time.thread_time() - before)

    server = await asyncio.start_server(answer, "127.0.0.1")
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    made = HttpClient("test", urlsplit(address), HttpTimeouts(), None, None)
    head = RequestHead("GET", "/", {"host": urlsplit(address).netloc})
    async with server, asyncio.timeout(60):
        reply = await made.send(head, b"", None, None, limit_bytes=limit_bytes)
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.sleep(0)
            taken = await read(reply)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await reply.aclose()
            await made.aclose()
    return taken, longest


async def read_whole(reply: UpstreamReply) -> int:
    return len(await reply.read())


async def stream(reply: UpstreamReply) -> int:
    return sum([len(piece) async for piece in reply.iter_bytes()])


@pytest.mark.parametrize("read", [read_whole, stream])
async def test_the_event_loop_goes_on_while_an_answer_is_inflated(
    read: Callable[[UpstreamReply], Awaitable[int]],
) -> None:
    size, longest = await take(zipped(60 * MB), read)
    print(f"longest step of the loop: {longest * 1000:.1f} ms")
    assert size == 60 * MB
    assert longest < LONGEST_STEP_SECONDS


async def test_a_whole_answer_that_inflates_too_far_is_refused() -> None:
    with pytest.raises(UpstreamUnavailable, match="compressed answer of more than 67108864 bytes"):
        await take(zipped(256 * MB), read_whole)


async def test_a_stream_that_inflates_too_far_is_cut() -> None:
    with pytest.raises(UpstreamUnavailable, match="compressed answer of more than 8388608 bytes"):
        await take(zipped(9 * MB), stream, limit_bytes=8 * MB)


@pytest.mark.parametrize("read", [read_whole, stream])
async def test_a_plain_answer_that_is_too_long_is_cut(read: Callable[[UpstreamReply], Awaitable[int]]) -> None:
    size, _ = await take(bytes(8 * MB), read, encoding="identity", limit_bytes=8 * MB)
    assert size == 8 * MB
    with pytest.raises(UpstreamUnavailable, match="an answer of more than 8388608 bytes"):
        await take(bytes(8 * MB + 1), read, encoding="identity", limit_bytes=8 * MB)


async def test_small_pieces_are_inflated_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", None)
    size, _ = await take(zlib.compress(b"x" * 5000, wbits=31), stream)
    assert size == 5000
