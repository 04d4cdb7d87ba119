"""Bounds the bytes of request bodies that the process holds at once. Without it a few large bodies, each within its own
limit, end the process for all tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.errors import Overloaded

HELD_BODY: Final = "concertina.held_body"
"""Key of a request's body in its ASGI scope."""
UNKNOWN_SENDER: Final = ""
"""Stands for all senders together whose credential is checked only after the body is read."""
RETRY_AFTER_SECONDS: Final = 2.0


class BodyBudget:
    """The bytes of all bodies in flight, from their first byte to the end of their request.

    One sender holds at most half, but always one body of the largest size: its bodies never keep out those of others.

    Args:
        limit_bytes: for all senders together. 0: no limit.
        body_limit_bytes: the largest body.
    """

    def __init__(self, limit_bytes: int, body_limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sender_limit_bytes = max(limit_bytes // 2, body_limit_bytes)
        self._held_bytes = 0
        self._sender_bytes: dict[str, int] = {}

    @contextmanager
    def hold_body(self, sender: str) -> Iterator[HeldBody]:
        """Counts the body that the block reads, until the block ends."""
        body = HeldBody(self, sender)
        try:
            yield body
        finally:
            self._add(sender := body.sender, -body.size)
            if not self._sender_bytes[sender]:
                del self._sender_bytes[sender]

    def reserve(self, sender: str, size: int) -> None:
        """Counts `size` more bytes.

        Raises:
            Overloaded: there is no room for them.
        """
        if self._limit_bytes and (
            self._held_bytes + size > self._limit_bytes
            or self._sender_bytes.get(sender, 0) + size > self._sender_limit_bytes
        ):
            raise Overloaded(
                "The gateway holds as many bytes of request bodies as it may, of all clients or of this one.",
                hint="Try again, or raise `limits.max_concurrent_body_bytes`.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._add(sender, size)

    def _add(self, sender: str, size: int) -> None:
        self._held_bytes += size
        self._sender_bytes[sender] = self._sender_bytes.get(sender, 0) + size


class HeldBody:
    """A body that is being read, or is in use.

    Attributes:
        sender: a tenant.
        size: how many bytes are counted for it.
    """

    __slots__ = ("_budget", "sender", "size")

    def __init__(self, budget: BodyBudget, sender: str) -> None:
        self._budget = budget
        self.sender = sender
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Counts the body with `size` bytes, if it is counted with fewer.

        Raises:
            Overloaded: there is no room for it.
        """
        if size > self.size:
            self._budget.reserve(self.sender, size - self.size)
            self.size = size
