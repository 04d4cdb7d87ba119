"""What a request leaves in memory when it is refused, fails or is cancelled: its body is freed with the answer.

The garbage collector is off, so only reference counting frees memory. A reference cycle, such as an exception whose
traceback leads back to whoever keeps the exception, holds the whole request and fails the test of its case.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.edge.kept import user
from tests.edge.test_disconnect import BEGUN
from tests.live import completion, gateway

BODY_BYTES: Final = 1_000_000
REQUESTS: Final = 3
PIECE_BYTES: Final = 65_536
TEXT: Final = "word " * (BODY_BYTES // 5)
REFUSED: Final = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}


def chat(text: str = TEXT, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [user(text)], **fields}).encode()


async def send(
    base_url: str,
    body: bytes,
    *,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    chunked: bool = False,
    leave_after: bytes | None = None,
) -> int:
    """Send a request over a connection of its own, and read its answer to the end. This client keeps nothing.

    Args:
        chunked: send no length.
        leave_after: hang up once this has come.

    Returns:
        The status; 0 where none came.
    """
    url = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
        fields = {
            "host": url.netloc,
            "authorization": "Bearer sk-one",
            "content-type": "application/json",
            **(headers or {}),
        }
        lines = [f"POST {path} HTTP/1.1", length, *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        if leave_after is not None:
            await reader.readuntil(leave_after)
            return 0
        return await read_answer(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer that is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    if length is not None:
        await reader.readexactly(int(length[1]))
    else:
        await reader.readuntil(b"0\r\n\r\n")
    return int(head.split(b" ", 2)[1])


@contextmanager
def uncollected() -> Iterator[None]:
    """Only reference counting frees memory within."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@asynccontextmanager
async def refusing(answer: bytes, *, holds: bool = False) -> AsyncIterator[str]:
    """An upstream that reads a request, keeps nothing of it, sends `answer` and closes; gives its address.

    Args:
        holds: close only when the client has left.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        left = int(length[1]) if length else 0
        while left:
            left -= len(await reader.read(min(left, PIECE_BYTES)))
        writer.write(answer)
        if holds:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


def whole(status: int, body: bytes, kind: str = "application/json") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        status,
        kind.encode(),
        len(body),
        body,
    )


STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN_STREAM: Final = STREAM_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in BEGUN)
FINE: Final = whole(200, json.dumps(completion().body).encode())
NO: Final = json.dumps({"error": {"message": "no"}}).encode()


@dataclass(frozen=True)
class Case:
    """A way in which a request ends without a whole answer.

    Attributes:
        body: what is sent.
        status: of the answer.
        reply: what the upstream answers each call.
        settings: sections of the gateway's configuration.
        options: see `send`.
    """

    status: int
    body: bytes
    reply: bytes = FINE
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cancelled(self) -> bool:
        return "leave_after" in self.options


def case(status: int, body: bytes, reply: bytes = FINE, settings: Any = None, **options: Any) -> Case:
    return Case(status, body, reply, settings or {}, options)


SETTINGS: Final = {
    "server": {"preload": True},  # nothing is loaded while memory is measured
    "retries": {"base_seconds": 0.01, "max_seconds": 0.02, "breaker_failures": 1000},
}
NOBODY = {"base_url": "http://127.0.0.1:9/v1", "api_key": "sk-nobody"}
UNREACHABLE = {"providers": {"upstream": NOBODY}}
BODY = chat()
STREAMED = chat(stream=True)
NO_MODEL = {"models": {"known": {"provider": "upstream", "context_window": 8192}}}
WIDE = {"models": {"*": {"provider": "upstream", "context_window": 2_000_000}}}
FALLBACK = {
    "models": {
        "m": {"provider": "upstream", "context_window": 2_000_000, "fallbacks": ["n"]},
        "*": {"provider": "upstream", "context_window": 2_000_000},
    },
}
"""Both of them at the upstream."""

CASES = {
    "bad JSON": case(400, BODY[:-1]),
    "invalid JSON encoding": case(400, BODY[:-3] + b"\xff\xff\xff"),
    "no messages": case(400, chat(messages=[], metadata={"a": TEXT})),
    "an invalid message": case(400, chat(messages=[{"role": "user", "content": TEXT}, {"content": 5}])),
    "an invalid parameter": case(400, chat(n=-1)),
    "an unknown model": case(404, BODY, settings=NO_MODEL),
    "an unknown policy": case(400, BODY, settings=WIDE, headers={"x-context-policy": "none"}),
    "a context too long": case(400, BODY),
    "a body too large": case(
        413, BODY, settings={"server": {"body_limit_bytes": BODY_BYTES // 2, "preload": True}}, chunked=True
    ),
    "a key without rights": case(401, BODY, settings={"auth": {"mode": "keys"}}),
    "an upstream's 400": case(400, BODY, whole(400, NO), WIDE),
    "an upstream's 500": case(500, BODY, whole(500, NO), WIDE),
    "an upstream's 429": case(429, BODY, whole(429, NO), WIDE),
    "an answer that is no answer": case(502, BODY, whole(200, b"<html>"), WIDE),
    "an upstream that breaks off": case(502, BODY, BEGUN_STREAM, WIDE),
    "an unreachable upstream": case(502, BODY, settings={**WIDE, **UNREACHABLE}),
    "a fallback that fails too": case(500, BODY, whole(500, NO), FALLBACK),
    "a stream refused": case(400, STREAMED, whole(400, NO), WIDE),
    "a stream refused by all": case(500, STREAMED, whole(500, NO), FALLBACK),
    "a stream that breaks off": case(200, STREAMED, BEGUN_STREAM, WIDE),
    "a stream that never begins": case(502, STREAMED, STREAM_HEAD, WIDE),
    "a stream cancelled": case(0, STREAMED, BEGUN_STREAM, WIDE, leave_after=b"Half an"),
    "passed through, 400": case(400, BODY, whole(400, NO), path="/v1/embeddings"),
    "passed through, unreachable": case(502, BODY, settings=UNREACHABLE, path="/v1/embeddings"),
    "passed through, breaks off": case(0, BODY, BEGUN_STREAM, path="/v1/embeddings"),
    "an unknown path": case(404, BODY, path="/nothing/here"),
    "an invalid conversation": case(400, BODY[:-1], path="/v1/conversations"),
    "invalid items": case(400, chat(items=[{"type": "nothing"}]), path="/v1/conversations"),
    "context count, bad": case(400, BODY[:-1], path="/v1/context/count"),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_body_is_freed_with_the_answer(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    async with (
        refusing(case.reply, holds=case.is_cancelled) as address,
        gateway(
            address, database=f"sqlite+aiosqlite:///{tmp_path}/refusals.db", **{**SETTINGS, **case.settings}
        ) as base_url,
    ):

        async def run() -> None:
            assert await send(base_url, case.body, **case.options) == case.status

        await run()  # what is loaded and made once
        with uncollected():
            await run()
            await asyncio.sleep(0.05)
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(REQUESTS):
                await run()
            kept = BODY_BYTES
            for _ in range(50):
                kept = tracemalloc.get_traced_memory()[0] - before
                if kept < BODY_BYTES / 2:
                    break
                await asyncio.sleep(0.02)
    assert kept < BODY_BYTES / 2
