"""A connection that fails on its way: a TCP proxy whose connections a test cuts, on one side or both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""


class Wire:
    """A listening proxy in front of one address. Connections stay as they are until they are cut."""

    def __init__(self, address: str) -> None:
        self.host, self.port = urlsplit(address).hostname, urlsplit(address).port
        self.address = ""
        self.connections = 0
        self.loses_answers = 0
        """How many of the next pieces that come back are lost together with their connection."""
        self._clients: list[asyncio.StreamWriter] = []
        self._servers: list[asyncio.StreamWriter] = []
        self._untold: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset every connection on both sides."""
        self.cut_clients()
        for writer in self._servers:
            writer.close()
        self._servers.clear()

    def cut_clients(self) -> None:
        """Reset every connection on the client's side; the server is not told."""
        self._untold.update(self._servers)
        for writer in self._clients:
            if not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
        self._clients.clear()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        from_server, to_server = await asyncio.open_connection(self.host, self.port)
        self._clients.append(writer)
        self._servers.append(to_server)
        pumps = (self._pump(reader, to_server), self._pump(from_server, writer))
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                if self.loses_answers and writer in self._clients:
                    self.loses_answers -= 1
                    self.cut()
                    return
                writer.write(piece)
                await writer.drain()
        if writer not in self._untold:
            writer.close()

    def close(self) -> None:
        self.cut()


@asynccontextmanager
async def wire(address: str) -> AsyncIterator[Wire]:
    """A proxy in front of `address`, an URL; its own is `Wire.address`."""
    proxy = Wire(address)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"http://{host}:{port}{urlsplit(address).path}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
