"""Stands in for PgBouncer in transaction mode: `python -m tests.replicas.pooler --listen PORT --server FOLDER`.

It does as PgBouncer before 1.21:

- A client has a connection to the server from the first message of a transaction until the server is ready outside of
  one; who finds none free waits in order. There are `--pool-size` for each database.
- Nothing of a session goes with a client: no prepared statement, no SET, no LISTEN, no lock. Nothing is reset either:
  all of it stays with the connection, for whoever has it next.
- Clients are told a process and a key of the pooler's own. A request to cancel goes on to the connection that its
  client has just then, and nobody else has that one until the server has taken the request.
- Startup parameters that it does not know are refused. Who leaves within a transaction takes the connection along;
  who loses one is disconnected.

It is harsher: all connections are opened for the first client, and the one that has rested longest is handed out
first, so that a client's next transaction is on another wherever there is one. DateStyle, TimeZone and the like do not
go with a client either. It is less: everybody is trusted and is `postgres` on the server's socket, there is neither
TLS nor time-out nor console, and nobody is slowed down who sends faster than is read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
from collections import deque
from pathlib import Path
from typing import Final

from tests.replicas.wire import (
    CANCEL,
    ENDS_A_STEP,
    GSS,
    SSL,
    VERSION_3,
    Peer,
    failure,
    framed,
    logged_in,
    opening,
)

WHO: Final = {"user", "database", "application_name"}
KNOWN: Final = {*WHO, "client_encoding", "datestyle", "timezone", "standard_conforming_strings"}
"""What a client may say of itself and its session when it begins."""


class Server(Peer):
    """A connection to PostgreSQL."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.client: Client | None = None
        self.is_ready = False
        self._pool = pool
        self._key = b""
        self._told: list[bytes] = []
        """What the client has yet to be sent, or what was told before there was one."""
        self._unanswered = self._cancelling = 0
        self._is_in_transaction = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(opening("postgres", self._pool.database))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._pass_on()

    def received(self, kind: bytes, content: bytes, message: bytes) -> None:
        if not self.is_ready:
            self._begin(kind, content, message)
        elif self.client is not None:  # else a notice that nobody is there for
            self._told.append(message)
            if kind == b"Z":
                self._unanswered -= 1
                self._is_in_transaction = content != b"I"
                self._rest_if_through()

    def ask(self, messages: list[tuple[bytes, bytes]]) -> None:
        self._unanswered += sum(kind in ENDS_A_STEP for kind, _ in messages)
        self.transport.write(b"".join(message for _, message in messages))

    async def cancel(self) -> None:
        """Ask the server to, and keep the connection until it has done so: then it closes the one that asks."""
        self._cancelling += 1
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(self._pool.socket)
            with contextlib.closing(writer):
                writer.write(framed(b"", CANCEL.to_bytes(4) + self._key))
                await reader.read()
        self._cancelling -= 1
        self._rest_if_through()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            self.client.server = None
            self.client.refuse(failure("server conn crashed?"))
        self._pool.lost(self, b"".join(self._told))

    def _begin(self, kind: bytes, content: bytes, message: bytes) -> None:
        if kind in (b"S", b"E"):
            self._told.append(message)
        elif kind == b"K":
            self._key = content
        elif kind == b"Z":
            self.is_ready = True
            self._pool.opened(self, b"".join(self._told))
            self._told.clear()

    def _rest_if_through(self) -> None:
        if self._unanswered or self._is_in_transaction or self._cancelling:
            return
        self._pass_on()
        if self.client is not None:
            self.client.server = None
            self.client = None
            self._pool.rest(self)

    def _pass_on(self) -> None:
        if self.client is not None and self._told:
            self.client.transport.write(b"".join(self._told))
            self._told.clear()


class Client(Peer):
    """Who believes to be connected to PostgreSQL."""

    def __init__(self, pooler: Pooler) -> None:
        super().__init__(type_bytes=0)
        self.server: Server | None = None
        self._key = secrets.token_bytes(8)
        self._pooler = pooler
        self._pool: Pool | None = None
        self._asked: list[tuple[bytes, bytes]] = []
        """Type and whole of the messages that no server has yet."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._asked and self.server is not None:
            self.serve(self.server)
        elif self._asked and self._pool is not None:
            self._pool.ask(self)

    def received(self, kind: bytes, content: bytes, message: bytes) -> None:
        if not self.type_bytes:
            self._begin(int.from_bytes(content[:4]), content[4:])
        elif kind == b"X":
            self._asked.clear()
            self.transport.close()
        else:
            self._asked.append((kind, message))

    def welcome(self, parameters: bytes) -> None:
        self._pooler.clients[self._key] = self
        self.transport.write(logged_in(parameters, self._key))

    def serve(self, server: Server) -> None:
        self.server, server.client = server, self
        server.ask(self._asked)
        self._asked.clear()

    def refuse(self, complaint: bytes) -> None:
        self.transport.write(complaint)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooler.clients.pop(self._key, None)
        if self._pool is not None:
            self._pool.forget(self)
        if self.server is not None:
            self.server.client = None
            self.server.transport.abort()

    def _begin(self, asks_for: int, rest: bytes) -> None:
        if asks_for in (SSL, GSS):
            self.transport.write(b"N")
        elif asks_for == CANCEL:
            self._pooler.group.create_task(self._cancel(rest))
        elif asks_for == VERSION_3:
            self.type_bytes = 1
            words = rest.decode().split("\0")
            self._enter(dict(zip(words[:-2:2], words[1:-2:2], strict=True)))
        else:
            self.refuse(failure(f"unsupported protocol {asks_for}"))

    def _enter(self, parameters: dict[str, str]) -> None:
        strange = {name.lower() for name in parameters} - KNOWN
        if strange:
            self.refuse(failure(f"unsupported startup parameter: {min(strange)}"))
        else:
            self._pool = self._pooler.pool(parameters.get("database", parameters["user"]))
            self._pool.enter(self)

    async def _cancel(self, key: bytes) -> None:
        meant = self._pooler.clients.get(key)
        if meant is not None and meant.server is not None:
            await meant.server.cancel()
        self.transport.close()


class Pool:
    """The connections to a database, and who waits for one."""

    def __init__(self, pooler: Pooler, database: str) -> None:
        self.database = database
        self.socket = pooler.socket
        self._pooler = pooler
        self._parameters = b""
        self._count = self._opening = 0
        self._resting: deque[Server] = deque()
        self._waiting: deque[Client] = deque()
        self._entering: deque[Client] = deque()

    def enter(self, client: Client) -> None:
        """Welcome it as soon as there are connections."""
        self._entering.append(client)
        self._go_on()

    def ask(self, client: Client) -> None:
        """Give it a connection when its turn comes."""
        if client not in self._waiting:
            self._waiting.append(client)
        self._go_on()

    def forget(self, client: Client) -> None:
        for clients in (self._entering, self._waiting):
            if client in clients:
                clients.remove(client)

    def opened(self, server: Server, parameters: bytes) -> None:
        self._opening -= 1
        self._parameters = parameters
        self.rest(server)

    def rest(self, server: Server) -> None:
        self._resting.append(server)
        self._go_on()

    def lost(self, server: Server, told: bytes) -> None:
        self._count -= 1
        if server in self._resting:
            self._resting.remove(server)
        if server.is_ready:
            self._go_on()
        else:
            self._failed(told or failure("the server closes the connection"))

    def _go_on(self) -> None:
        while (self._entering or self._waiting) and self._count < self._pooler.size:
            self._count += 1
            self._opening += 1
            self._pooler.group.create_task(self._open())
        while self._entering and not self._opening:
            self._entering.popleft().welcome(self._parameters)
        while self._waiting and self._resting:
            self._waiting.popleft().serve(self._resting.popleft())

    async def _open(self) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: Server(self), self.socket)
        except OSError as error:
            self._count -= 1
            self._failed(failure(f"the server cannot be reached: {error}"))

    def _failed(self, complaint: bytes) -> None:
        """Whoever waits for a connection is told why there is none."""
        self._opening -= 1
        refused = [*self._entering, *self._waiting]
        self._entering.clear()
        self._waiting.clear()
        for client in refused:
            client.refuse(complaint)


class Pooler:
    """All of this process; the group owns its tasks."""

    def __init__(self, socket: str, size: int, group: asyncio.TaskGroup) -> None:
        self.socket = socket
        self.size = size
        self.group = group
        self.clients: dict[bytes, Client] = {}
        """Those logged in, by the key that cancels."""
        self._pools: dict[str, Pool] = {}

    def pool(self, database: str) -> Pool:
        return self._pools.setdefault(database, Pool(self, database))


async def share_out(port: int, folder: Path, size: int) -> None:
    """Listen for clients of the server whose socket is in the folder."""
    async with asyncio.TaskGroup() as group:
        pooler = Pooler(str(folder / ".s.PGSQL.5432"), size, group)
        listening = await asyncio.get_running_loop().create_server(lambda: Client(pooler), "127.0.0.1", port)
        await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A pooler for tests.")
    parser.add_argument("--listen", type=int, required=True, metavar="PORT")
    parser.add_argument("--server", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pool-size", type=int, default=2)
    given = parser.parse_args()
    asyncio.run(share_out(given.listen, given.server, given.pool_size))
