"""Opens connections to a server: looks up its name, connects to the first address that answers, and starts TLS."""

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

from app.upstream.http.http1_connection import Http1Connection
from app.upstream.http.http_client_contract import (
    HAPPY_EYEBALLS_DELAY_SECONDS,
    answer_timeout_error,
    connect_timeout_error,
    make_keepalive_socket,
    unreachable_error,
)

ADDRESS_CACHE_SECONDS: Final = 10.0
"""How long the addresses of a name are cached."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@functools.cache
def load_trusted_ca_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Returns a TLS context that trusts the certificates in a file, or the system's roots.

    Loading the roots takes some 20 ms, so all providers share the context. OpenSSL reads `SSL_CERT_FILE` and
    `SSL_CERT_DIR` in place of the system's file and folder.

    Raises:
        OSError: the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(("http/1.1",))
    return context


class Dialer:
    """Opens connections to the server of a URL.

    Args:
        provider_name: for error messages.
        url: `http` or `https`, with a host.
        tls: None: the system's roots.
        connect_seconds: time limit for look-up, connection and TLS together.
        make_connection: makes the protocol object of a connection.
    """

    def __init__(
        self,
        provider_name: str,
        url: SplitResult,
        tls: ssl.SSLContext | None,
        connect_seconds: float | None,
        make_connection: Callable[[], Http1Connection],
    ) -> None:
        self._provider_name = provider_name
        self._host = ascii_host(url)
        self._port = url.port or DEFAULT_PORTS[url.scheme]
        self._tls = tls
        self._uses_tls = url.scheme == "https"
        self._connect_seconds = connect_seconds
        self._make_connection = make_connection
        self._addresses: deque[AddrInfoType] = deque()
        self._addresses_expire_at = float("-inf")
        self._resolve_lock = asyncio.Lock()

    async def dial(self, deadline: float | None) -> Http1Connection:
        """Opens a connection.

        Args:
            deadline: loop time at which the whole call must have ended; None for never.

        Raises:
            UpstreamUnavailable: no connection could be opened in time.
            AnswerTimedOut: the deadline of the whole call has passed.
        """
        now, limit = asyncio.get_running_loop().time(), self._connect_seconds
        connect_deadline = None if limit is None or (deadline is not None and deadline <= now + limit) else now + limit
        try:
            async with asyncio.timeout_at(deadline if connect_deadline is None else connect_deadline):
                return await self._open_connection()
        except TimeoutError as error:
            # The earlier deadline decides which error it is, not the present time: a loop's timer may fire a little
            # early.
            raise (answer_timeout_error if connect_deadline is None else connect_timeout_error)(
                self._provider_name
            ) from error
        except OSError as error:
            raise unreachable_error(self._provider_name, error) from error

    async def _open_connection(self) -> Http1Connection:
        loop = asyncio.get_running_loop()
        connected_socket = await start_connection(
            await self._resolve_addresses(),
            happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_SECONDS,
            interleave=1,
            loop=loop,
            socket_factory=make_keepalive_socket,
        )
        try:
            _, connection = await loop.create_connection(
                self._make_connection,
                sock=connected_socket,
                ssl=(self._tls or load_trusted_ca_context()) if self._uses_tls else None,
                server_hostname=self._host if self._uses_tls else None,
            )
        # Also on cancellation: until the transport exists, nobody else closes the socket.
        except BaseException:
            connected_socket.close()
            raise
        return connection

    async def _resolve_addresses(self) -> list[AddrInfoType]:
        """Returns the host's addresses, beginning with another one each time, so that calls spread. Concurrent calls
        share one look-up.
        """
        loop = asyncio.get_running_loop()
        async with self._resolve_lock:
            if loop.time() >= self._addresses_expire_at:
                addresses = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
                self._addresses = deque(addresses)
                self._addresses_expire_at = loop.time() + ADDRESS_CACHE_SECONDS
        self._addresses.rotate(-1)
        return list(self._addresses)


def ascii_host(url: SplitResult) -> str:
    """Returns the host of a URL as DNS and certificates have it: international names in ASCII."""
    host = url.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()
