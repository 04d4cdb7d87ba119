"""A real HTTP/1.1 server on the loopback whose every byte is scripted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status.encode(), len(body), headers, body)


@dataclass
class Received:
    """A request as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Loopback:
    """What the server saw; `gone` is set when a client closes its connection."""

    port: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    origin: str = "http://127.0.0.1"

    @property
    def url(self) -> str:
        return f"{self.origin}:{self.port}/v1"


Script = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def loopback(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Loopback]:
    """Serve each request on each connection by `script`; a script that closes the writer ends the connection."""
    state = Loopback(origin=f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        try:
            while not writer.is_closing() and (received := await _request(reader)) is not None:
                state.requests.append(received)
                await script(received, writer)
                if not writer.is_closing():
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            state.gone.set()
            writer.close()

    server = await asyncio.start_server(connected, host, ssl=tls, backlog=1024)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()


async def until_gone(reader_side: asyncio.StreamWriter) -> None:
    """Wait until the client's end of the connection is closed."""
    while not reader_side.is_closing():
        reader_side.write(b"")
        await asyncio.sleep(0.001)


async def _request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value for name, _, value in (entry.partition(": ") for entry in rest)}
    return Received(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
