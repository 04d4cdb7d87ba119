"""Where a request ends is said once and in one way, or the request is refused: two readers of it must never differ."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import World, user, world

BODY = json.dumps({"model": "m", "messages": [user("x")]})
CHUNKED_BODY = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n"


async def send_raw(w: World, text: str) -> bytes:
    """What a connection answers until it is closed."""
    port = int(re.findall(r":(\d+)", w.base_url)[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text.encode("latin-1"))
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.transport.abort()


def ask(head: str, body: str, *, version: str = "1.1", path: str = "/v1/chat/completions") -> str:
    return f"POST {path} HTTP/{version}\r\nhost: x\r\n{head}\r\n{body}"


@pytest.mark.parametrize(
    "head",
    [
        "Transfer-Encoding: gzip, chunked\r\n",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
        "Transfer-Encoding: ,chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: identity\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(BODY)}\r\n",
        f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_body_is_chunked_and_nothing_else(head: str, path: str) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await send_raw(w, ask(head, f"{CHUNKED_BODY}\r\n", path=path))
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
        assert w.upstream.bodies == []


async def test_a_refused_coding_is_named() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await send_raw(w, ask("Transfer-Encoding: gzip, chunked\r\n", f"{CHUNKED_BODY}\r\n"))
        message = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert "'gzip, chunked'" in message
        assert "`chunked`" in message
        many = "a," * 5000
        answer = await send_raw(w, ask(f"Transfer-Encoding: {many} chunked\r\n", f"{CHUNKED_BODY}\r\n"))
        assert len(answer) < 1000


async def test_a_client_of_http_1_0_sends_no_chunks() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await send_raw(w, ask("Transfer-Encoding: chunked\r\n", f"{CHUNKED_BODY}\r\n", version="1.0"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert w.upstream.bodies == []


@pytest.mark.parametrize("lengths", [("5", "6"), ("5", "5"), ("5, 5",), ("+5",), ("",), ("5 5",), ("0x5",)])
async def test_a_length_stands_once_and_in_digits(lengths: tuple[str, ...]) -> None:
    async with world(ScriptedUpstream()) as w:
        head = "".join(f"Content-Length: {length}\r\n" for length in lengths)
        answer = await send_raw(w, ask(head, "hello!"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("coding", ["chunked", "Chunked", "CHUNKED"])
async def test_a_chunked_body_is_read(coding: str) -> None:
    async with world(ScriptedUpstream()) as w:
        head = f"Transfer-Encoding: {coding}\r\nConnection: close\r\n"
        assert (await send_raw(w, ask(head, f"{CHUNKED_BODY}\r\n"))).startswith(b"HTTP/1.1 200 ")


async def test_trailers_say_nothing_of_who_asks() -> None:
    async with world(ScriptedUpstream()) as w:
        head = "Transfer-Encoding: chunked\r\nConnection: close\r\n"
        trailers = "Authorization: Bearer sk-trailer\r\nX-Conversation-Id: trailer\r\nHost: evil.com\r\n"
        answer = await send_raw(w, ask(head, f"{CHUNKED_BODY}{trailers}\r\n"))
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        (kept,) = w.conversations()
        assert (kept.id == "trailer", kept.tenant) == (False, "anonymous")


async def test_there_is_no_other_protocol_to_change_to() -> None:
    async with world(ScriptedUpstream()) as w:
        head = "Connection: upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        answer = await send_raw(w, f"GET /console/session HTTP/1.1\r\nhost: x\r\n{head}\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), answer
