"""An answer on its way out: passed on, and noted how far it has come."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Send

from app.observability import families
from app.observability.metrics import Metrics

CLOSED_BY_CLIENT = 499
"""nginx's status for an answer that nobody was there to be told."""


class Sending:
    """Passes an answer on and notes what of it has been sent.

    Attributes:
        status: of the answer; None until its head is sent.
        first_byte_at: when the first piece of its body was sent, by `now`.
        streams: it is a stream of events.
    """

    __slots__ = ("_now", "_send", "ended", "first_byte_at", "status", "streams")

    def __init__(self, send: Send, now: Callable[[], float]) -> None:
        self._send = send
        self._now = now
        self.status: int | None = None
        self.first_byte_at: float | None = None
        self.ended = False
        self.streams = False

    @property
    def head_sent(self) -> bool:
        return self.status is not None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            if self.first_byte_at is None:
                self.first_byte_at = self._now()
            self.ended = not message.get("more_body", False)
        await self._send(message)


def count(metrics: Metrics, endpoint: str, sending: Sending, began: float) -> None:
    """Count a request that is over, however it ended.

    Args:
        endpoint: a path as it is documented.
        began: when it came, by `metrics.now`.
    """
    if not metrics.is_on:
        return
    status = CLOSED_BY_CLIENT if sending.status is None else sending.status
    streams = "true" if sending.streams else "false"
    metrics.counted(families.REQUESTS, endpoint, str(status)).add()
    metrics.observed(families.REQUEST_SECONDS, endpoint, streams).add(metrics.now() - began)
    if not sending.ended:
        metrics.counted(families.DISCONNECTS).add()


def count_first_byte(metrics: Metrics, sending: Sending, began: float) -> None:
    """Note how long a client of a chat completion waited to see something."""
    if metrics.is_on and sending.first_byte_at is not None:
        streams = "true" if sending.streams else "false"
        metrics.observed(families.FIRST_BYTE_SECONDS, streams).add(sending.first_byte_at - began)
