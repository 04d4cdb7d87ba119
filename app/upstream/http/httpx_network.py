"""The connections of httpx, with what httpx does not do: notice a dead server, take an answer that comes while the
request is still being written, and refuse an answer that was there before the request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from app.upstream.http.http_client_contract import KEEP_ALIVE_OPTIONS, SINGLE_WRITE_BYTES

READ_BYTES: Final = 64 * 1024
PROBE_LOOP_ITERATIONS: Final = 4
"""How often the event loop runs before bytes that have already come must have been read: anyio yields to it twice, TLS
once more."""
_ANSWER_START: Final = b"HTTP/"
_INFORMATIONAL_START: Final = b"HTTP/1.1 1"


class NetworkBackend(httpcore.AnyIOBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> NetworkStream:
        # httpcore passes no socket options to a proxy's connections.
        return NetworkStream(await super().connect_tcp(host, port, timeout, local_address, KEEP_ALIVE_OPTIONS))


class NetworkStream(httpcore.AsyncNetworkStream):
    """An open connection.

    Attributes:
        awaits_answer: whether a request has been written, wholly or in part, and nothing been read since.
        is_open: whether nobody has closed it here.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._early_bytes = b""
        self._is_used = False
        self.awaits_answer = False
        self.is_open = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        data, self._early_bytes = self._early_bytes, b""
        if not data:
            data = await self._stream.read(max_bytes, timeout)
        # The parser may hold the beginning of an answer that nobody asked for: these bytes must not continue it.
        if self._is_used and self.awaits_answer and not data.startswith(_ANSWER_START[: len(data)]):
            raise httpcore.ReadError("not the beginning of an answer")
        self.awaits_answer = False
        self._is_used = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's signature
        """Writes a part of a request.

        Raises:
            httpcore.WriteError: the answer has come: httpcore reads it and closes the connection afterwards.
            httpcore.ReadError: something has come before the request.
        """
        if not buffer:
            return
        if self._is_used and not self.awaits_answer and not self._early_bytes:
            await self._refuse_unasked_bytes()
        self.awaits_answer = True
        if not self._early_bytes and len(buffer) > SINGLE_WRITE_BYTES:
            await self._write_and_watch(buffer, timeout)
        elif not self._early_bytes or self._early_bytes.startswith(_INFORMATIONAL_START):
            await self._stream.write(buffer, timeout)
        else:
            raise httpcore.WriteError("the answer has come")

    async def _write_and_watch(self, buffer: bytes, timeout: float | None) -> None:  # noqa: ASYNC109 - as above
        """Writes, and ends early if an answer comes."""
        writing = asyncio.ensure_future(self._stream.write(buffer, timeout))  # noqa: TID251 - both are awaited below
        reading = asyncio.ensure_future(self._stream.read(READ_BYTES))  # noqa: TID251 - likewise
        try:
            await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.exception():
                self._early_bytes = reading.result()
            if writing.done() or self._early_bytes.startswith(_INFORMATIONAL_START):
                await writing
            else:
                raise httpcore.WriteError("the answer has come")
        finally:
            await _cancel(reading)
            await _cancel(writing)

    async def _refuse_unasked_bytes(self) -> None:
        reading = asyncio.ensure_future(self._stream.read(READ_BYTES))  # noqa: TID251 - awaited below
        try:
            for _ in range(PROBE_LOOP_ITERATIONS):
                await asyncio.sleep(0)
            if reading.done():
                raise httpcore.ReadError("data before the request, or the end of the connection")
        finally:
            await _cancel(reading)

    async def aclose(self) -> None:
        self.is_open = False
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> NetworkStream:
        try:
            return NetworkStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        # Also on cancellation: httpcore closes the connection after errors only.
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it was looked at: asyncio need not report it
