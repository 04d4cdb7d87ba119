"""Opens connections to a server: its name looked up, the first of its addresses that answers taken, TLS if asked."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult

from aiohappyeyeballs import AddrInfoType, start_connection

from app.upstream.http.client import (
    HAPPY_EYEBALLS_SECONDS,
    kept_alive_socket,
    unanswered_in_time,
    unreachable,
    unreachable_in_time,
)
from app.upstream.http.http1_connection import Connection

ADDRESSES_SECONDS: Final = 10.0
"""How long the addresses of a name are believed."""
PORTS: Final = {"http": 80, "https": 443}


@functools.cache
def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """TLS that trusts the certificates in a file, or the system's roots. Loading those takes some 20 ms, so all
    providers share them. OpenSSL reads `SSL_CERT_FILE` and `SSL_CERT_DIR` in place of the system's file and folder.

    Raises:
        OSError: the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(("http/1.1",))
    return context


class Dialer:
    """Opens connections to the server of a URL.

    Args:
        name: of the provider.
        url: `http` or `https`, with a host.
        tls: None: the system's roots.
        connect_seconds: until a connection stands, its name looked up and TLS agreed on.
        new: makes the protocol of a connection.
    """

    def __init__(
        self,
        name: str,
        url: SplitResult,
        tls: ssl.SSLContext | None,
        connect_seconds: float | None,
        new: Callable[[], Connection],
    ) -> None:
        self._name = name
        self._host = host_of(url)
        self._port = url.port or PORTS[url.scheme]
        self._tls = tls
        self._uses_tls = url.scheme == "https"
        self._connect_seconds = connect_seconds
        self._new = new
        self._addresses: deque[AddrInfoType] = deque()
        self._believed_until = float("-inf")
        self._looking_up = asyncio.Lock()

    async def dial(self, ends_at: float | None) -> Connection:
        """A new connection.

        Args:
            ends_at: loop time at which the whole call must have ended; None for never.

        Raises:
            UpstreamUnavailable: there is none.
            AnswerTimedOut: the whole call has taken too long.
        """
        now, limit = asyncio.get_running_loop().time(), self._connect_seconds
        connect_by = None if limit is None or (ends_at is not None and ends_at <= now + limit) else now + limit
        try:
            async with asyncio.timeout_at(ends_at if connect_by is None else connect_by):
                return await self._dialed()
        except TimeoutError as error:
            # Not by the time it is now: a loop's timer may strike a little early.
            raise (unanswered_in_time if connect_by is None else unreachable_in_time)(self._name) from error
        except OSError as error:
            raise unreachable(self._name, error) from error

    async def _dialed(self) -> Connection:
        loop = asyncio.get_running_loop()
        made = await start_connection(
            await self._found(),
            happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS,
            interleave=1,
            loop=loop,
            socket_factory=kept_alive_socket,
        )
        try:
            _, connection = await loop.create_connection(
                self._new,
                sock=made,
                ssl=(self._tls or tls_context()) if self._uses_tls else None,
                server_hostname=self._host if self._uses_tls else None,
            )
        except BaseException:
            made.close()
            raise
        return connection

    async def _found(self) -> list[AddrInfoType]:
        """The addresses of the host, begun with another one each time; one look-up serves all who wait for it."""
        loop = asyncio.get_running_loop()
        async with self._looking_up:
            if loop.time() >= self._believed_until:
                found = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
                self._addresses = deque(found)
                self._believed_until = loop.time() + ADDRESSES_SECONDS
        self._addresses.rotate(-1)
        return list(self._addresses)


def host_of(url: SplitResult) -> str:
    """The host of a URL as it is looked up and certified: international names in ASCII."""
    host = url.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()
