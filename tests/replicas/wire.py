"""PostgreSQL's protocol as it is on the wire, version 3: its manual's chapter "Frontend/Backend Protocol"."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

SSL, GSS, CANCEL, VERSION_3 = 80877103, 80877104, 80877102, 196608
"""What the first message of a connection may ask for."""
ENDS_A_STEP: Final = frozenset({b"Q", b"S", b"F"})
"""Query, Sync, FunctionCall: the server answers each with everything it has to say, and last that it is ready."""


class Peer(asyncio.Protocol, ABC):
    """Cuts what arrives into messages."""

    transport: asyncio.Transport

    def __init__(self, *, type_bytes: int = 1) -> None:
        """
        Args:
            type_bytes: those before a message's length: one, but none when a client begins.
        """
        self.type_bytes = type_bytes
        self._arrived = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        while not self.transport.is_closing() and (message := self._whole()):
            self.received(message[: self.type_bytes], message[self.type_bytes + 4 :], message)

    @abstractmethod
    def received(self, kind: bytes, content: bytes, message: bytes) -> None:
        """
        Args:
            message: all of it: type, length and content.
        """

    def _whole(self) -> bytes:
        begin = self.type_bytes + 4
        end = self.type_bytes + int.from_bytes(self._arrived[self.type_bytes : begin])
        if len(self._arrived) < max(begin, end):
            return b""
        message = bytes(self._arrived[:end])
        del self._arrived[:end]
        return message


def framed(kind: bytes, content: bytes) -> bytes:
    return kind + (len(content) + 4).to_bytes(4) + content


def opening(user: str, database: str) -> bytes:
    """The StartupMessage."""
    return framed(b"", VERSION_3.to_bytes(4) + f"user\0{user}\0database\0{database}\0\0".encode())


def logged_in(parameters: bytes, key: bytes) -> bytes:
    """Whoever it is is trusted, and the server is ready.

    Args:
        parameters: ParameterStatus messages.
        key: process and secret, 8 bytes: whoever knows them may cancel.
    """
    return framed(b"R", bytes(4)) + parameters + framed(b"K", key) + framed(b"Z", b"I")


def failure(message: str) -> bytes:
    """An ErrorResponse that ends the connection, with the code that PgBouncer's have."""
    return framed(b"E", f"SFATAL\0VFATAL\0C08P01\0M{message}\0\0".encode())
