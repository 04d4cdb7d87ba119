"""A TCP proxy that misbehaves as it is told, and shares connections out: before providers, databases and gateways."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""
PIECE_BYTES: Final = 65_536
LOOK_SECONDS: Final = 0.05
"""How often a connection that stands still looks whether it may go on."""

Target = tuple[str, int] | Path
"""Host and port, or a Unix socket."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the line. Bytes are counted downstream, for each connection from when the fault began."""

    latency_seconds: float = 0.0
    """Each piece is late by this, in both directions."""
    bytes_per_second: float = 0.0
    """Downstream; 0: as fast as it goes."""
    piece_bytes: int = 0
    """Downstream data comes in pieces of this size."""
    reset_after: int | None = None
    stall_after: int | None = None
    """Nothing more comes, and nobody is told."""
    refuses: bool = False
    """New connections are reset."""
    swallows: bool = False
    """What is sent is taken and never arrives."""
    garbage: bytes | None = None
    """Comes instead of an answer."""


NONE: Final = Fault()


class Proxy:
    """Listens on a port of its own and hands each connection to the next target that takes it."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = list(targets)
        self.port = 0
        self.connections = 0
        """How many there have been."""
        self._fault = NONE
        self._next = itertools.count()
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def fault(self) -> Fault:
        return self._fault

    def fail(self, fault: Fault = NONE) -> None:
        """From now on the line is like this."""
        self._fault = fault

    def cut(self) -> None:
        """Reset every connection on both sides."""
        for writer in list(self._open):
            reset(writer)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is connected."""
        return not self._open

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._fault.refuses:
            reset(writer)
            return
        reached = await self._reach()
        if reached is None:
            reset(writer)
            return
        from_target, to_target = reached
        both = {writer, to_target}
        self._open |= both
        pumps = {
            asyncio.create_task(self._pump(reader, to_target, both, down=False)),
            asyncio.create_task(self._pump(from_target, writer, both, down=True)),
        }
        self._pumps |= pumps
        try:
            await asyncio.wait(pumps)
        finally:
            self._pumps -= pumps
            self._open -= both
            for one in both:
                one.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next target that takes a connection."""
        first = next(self._next)
        for offset in range(len(self.targets)):
            target = self.targets[(first + offset) % len(self.targets)]
            with contextlib.suppress(OSError):
                if isinstance(target, Path):
                    return await asyncio.open_unix_connection(target)
                return await asyncio.open_connection(*target)
        return None

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: set[asyncio.StreamWriter], *, down: bool
    ) -> None:
        try:
            await self._pass_on(reader, writer, down=down)
            writer.write_eof()
        except (OSError, RuntimeError):  # the latter is uvloop's word for a transport that is closed
            for one in both:
                reset(one)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        """Until the end of what comes.

        Raises:
            OSError: one of them is gone, or is to be.
        """
        fault, sent = self._fault, 0
        while piece := await reader.read(PIECE_BYTES):
            if self._fault is not fault:
                fault, sent = self._fault, 0
            if fault is NONE:
                writer.write(piece)
                await writer.drain()
                continue
            if fault.swallows:
                continue
            await asyncio.sleep(fault.latency_seconds)
            if down and not await self._send_down(writer, piece, sent, fault):
                raise ConnectionResetError
            if not down:
                writer.write(piece)
                await writer.drain()
            sent += len(piece)

    async def _send_down(self, writer: asyncio.StreamWriter, piece: bytes, sent: int, fault: Fault) -> bool:
        """Send what a fault lets through; False where the connection is to be reset."""
        if fault.garbage is not None:
            writer.write(fault.garbage)
            await writer.drain()
            return False
        for limit in (fault.reset_after, fault.stall_after):
            if limit is not None and sent + len(piece) > limit:
                writer.write(piece[: max(0, limit - sent)])
                await writer.drain()
                if limit == fault.reset_after:
                    return False
                while self._fault is fault:  # noqa: ASYNC110 - a fault is a plain value that tests set
                    await asyncio.sleep(LOOK_SECONDS)
                return False
        step = fault.piece_bytes or len(piece)
        for start in range(0, len(piece), step):
            writer.write(piece[start : start + step])
            await writer.drain()
            await asyncio.sleep(min(step, len(piece)) / fault.bytes_per_second if fault.bytes_per_second else 0)
        return True


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other side gets a reset."""
    transport = writer.transport
    if transport.is_closing():
        return
    ours = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


@asynccontextmanager
async def proxied(*targets: Target) -> AsyncIterator[Proxy]:
    """A proxy before these targets."""
    proxy = Proxy(targets)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.aclose()
