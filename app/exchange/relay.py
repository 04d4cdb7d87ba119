"""The upstream's answer on its way to the client: bytes go through, a collector listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable
from app.exchange.begin import Begun
from app.exchange.frames import EarlyStream, decoded, spliced
from app.exchange.report import Report
from app.upstream.collect import Collector
from app.upstream.sse import DONE, Event

BAD_GATEWAY: Final = 502
END_WAIT_SECONDS: Final = 0.1
"""After `[DONE]`: a connection whose end comes this soon can be used again."""
ERROR_EVENT: Final = b"error"


class Relay:
    """A stream on its way through.

    After `frames` is exhausted `failure` says why it is not whole, and `collector` what it amounted to.
    """

    def __init__(
        self, begun: Begun, report: Report, *, include_usage: bool, early: EarlyStream | None, source: str
    ) -> None:
        self._begun = begun
        self._include_usage = include_usage
        self._early = early
        self._source = source
        self._fields = report.fields()
        self._report = report
        self._done = False
        self._ended = False
        """Nothing more is relayed: the end has come, or a failure."""
        self.collector = Collector()
        self.failure: GatewayError | None = None

    @property
    def completion_id(self) -> str | None:
        """The completion's id as the client was told."""
        return self.collector.id if self._early is None else self._early.completion_id

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Frames for the client, several at a time when they come so; neither errors nor the end are among them."""
        pieces, decoder = self._begun.pieces, self._begun.decoder
        try:
            if frames := self._frames(self._begun.events):
                yield frames
            if not self._ended:
                async for piece in pieces:
                    if frames := self._frames(decoder.feed(piece)):
                        yield frames
                    if self._ended:
                        break
                else:
                    if frames := self._frames(decoder.finish()):
                        yield frames
            if self._done:
                await await_end(pieces)
        except UpstreamUnavailable as error:
            if not self.collector.complete:
                self.failure = error
            return
        if self.failure is None and not self.collector.complete:
            self.failure = UpstreamUnavailable(f"The stream of {self._source!r} ended before its answer did.")

    def _frames(self, events: list[Event]) -> bytes:
        """The client's frames for some events, up to the first that is a failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data:
                continue
            if data == DONE:
                self._done = self._ended = True
                break
            try:
                frames.append(self._frame(data, event.name))
            except UpstreamUnavailable as error:
                self.failure = None if self.collector.complete else error
                self._done = self._ended = True
            if self._ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _frame(self, data: bytes, name: bytes) -> bytes:
        """The client's frame for one upstream event; empty for what the client is not to see."""
        collector = self.collector
        was_complete = collector.complete
        usage_before = collector.usage
        collector.add(data)
        if collector.error is not None or name == ERROR_EVENT:
            self.failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self._ended = True
            return b""
        if not self._include_usage and collector.usage is not usage_before and _is_usage_only(data):
            return b""
        fields = self._last_fields() if collector.complete and not was_complete else self._fields
        if self._early is not None:
            return self._early.adopted(data, fields)
        if b"\n" in data:
            data = data.replace(b"\n", b" ")
        return b"data: " + spliced(data, fields) + b"\n\n"

    def _last_fields(self) -> bytes:
        return self._report.all_fields(self._report.context())


async def await_end(pieces: AsyncIterator[bytes]) -> None:
    """Read on to the end of an answer whose last event has come, if it is not far."""
    try:
        async with asyncio.timeout(END_WAIT_SECONDS):
            async for _ in pieces:
                pass
    except TimeoutError:
        return


def finished_whole(body: bytes, source: str) -> Collector:
    """What an answer that is not streamed amounts to.

    Raises:
        UpstreamUnavailable: it is not a chat completion.
        UpstreamRefused: it is an error in spite of its status.
    """
    collector = Collector()
    collector.add_completion(body)
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if not collector.has_content and collector.finish_reason is None:
        raise UpstreamUnavailable(f"{source!r} answered with something that is not a chat completion.")
    return collector


def _is_usage_only(data: bytes) -> bool:
    """Whether a chunk carries usage and no choice: it came because we asked for it."""
    return not decoded(data).get("choices")
