"""How an upstream's answer begins: some servers say with status 200 that they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from app.errors import UpstreamUnavailable
from app.upstream.protocols.sse import Event, EventDecoder
from app.upstream.provider import Deployment, Reply
from app.upstream.routing.router import ReadReply

STREAM_TYPE: Final = "text/event-stream"
CHOICES: Final = b'"choices"'
"""What holds this is an answer, whatever else it says: a text may well speak of context windows."""


def is_answer(reply: Reply | Begun, *, stream: bool) -> bool:
    """Whether it is what was asked for: success, and a stream where one was asked for and only there."""
    return 200 <= reply.status < 300 and reply.headers.get("content-type", "").startswith(STREAM_TYPE) == stream


def no_answer(deployment: Deployment, reason: str) -> UpstreamUnavailable:
    """The error for an answer that is none. Mostly the address is to blame: behind it is something else.

    Args:
        reason: what the deployment did, such as ``answered with status 204``.
    """
    setting = f"providers.{deployment.provider.name}.base_url"
    return UpstreamUnavailable(f"{deployment.key!r} {reason}.", hint=f"Check {setting}.")


async def begun(reply: Reply, *, stream: bool, source: str) -> tuple[Begun | ReadReply, bytes | None]:
    """An answer as far as its first event, or read whole where it is not a stream.

    Returns:
        The reply to go on with, and what it says instead of an answer: a body, or the first event's data; None where
        it is an answer.

    Raises:
        UpstreamUnavailable: it ended or broke off before that.
    """
    if stream and is_answer(reply, stream=True):
        try:
            return await _until_first_event(reply, source)
        except BaseException:
            await reply.aclose()
            raise
    try:
        body = await reply.read()
    finally:
        await reply.aclose()
    whole = ReadReply(reply.status, reply.headers, body)
    return whole, None if is_answer(whole, stream=stream) and CHOICES in body else body


async def _until_first_event(reply: Reply, source: str) -> tuple[Begun, bytes | None]:
    decoder = EventDecoder(source)
    pieces = reply.chunks()
    seen: list[Event] = []
    async for piece in pieces:
        events = decoder.feed(piece)
        seen += events
        data = next((event.data for event in events if event.data and event.data.strip()), None)
        if data is not None:
            return Begun(reply, seen, pieces, decoder), None if CHOICES in data else data
    events = decoder.finish()
    data = next((event.data for event in events if event.data), None)
    if data is None:
        raise UpstreamUnavailable(f"The stream of {source!r} ended before its answer began.")
    return Begun(reply, seen + events, pieces, decoder), None if CHOICES in data else data


class Begun:
    """A stream whose first event has come; `upstream.provider.Reply`, once its rest has been read.

    Attributes:
        events: those that have come.
        pieces: what is still to come, for `decoder`, which may hold the beginning of an event.
    """

    def __init__(self, reply: Reply, events: list[Event], pieces: AsyncIterator[bytes], decoder: EventDecoder) -> None:
        self._reply = reply
        self.events = events
        self.pieces = pieces
        self.decoder = decoder
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def aclose(self) -> None:
        await self._reply.aclose()
