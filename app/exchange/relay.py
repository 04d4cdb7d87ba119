"""The upstream's answer on its way to the client: bytes go through, a collector listens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import orjson

from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable
from app.exchange.frames import EarlyStream, spliced
from app.exchange.report import Report
from app.upstream.base import Reply
from app.upstream.collect import Collector
from app.upstream.sse import DONE, EventDecoder

BAD_GATEWAY: Final = 502


class Relay:
    """A stream on its way through.

    After `frames` is exhausted `failure` says why it is not whole, and `collector` what it amounted to.
    """

    def __init__(
        self, reply: Reply, report: Report, *, include_usage: bool, early: EarlyStream | None, source: str
    ) -> None:
        self._reply = reply
        self._include_usage = include_usage
        self._early = early
        self._source = source
        self._fields = report.fields()
        self._all_fields = report.all_fields()
        self.collector = Collector()
        self.failure: GatewayError | None = None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Frames for the client, several at a time when they come so; neither errors nor the end are among them."""
        decoder = EventDecoder(self._source)
        try:
            async for piece in self._reply.chunks():
                frames = [self._frame(event.data) for event in decoder.feed(piece) if event.data]
                if frames:
                    yield frames[0] if len(frames) == 1 else b"".join(frames)
                if self.failure is not None:
                    return
            rest = [self._frame(event.data) for event in decoder.finish() if event.data]
            if rest:
                yield b"".join(rest)
        except UpstreamUnavailable as error:
            if not self.collector.complete:
                self.failure = error
            return
        if self.failure is None and not self.collector.complete:
            self.failure = UpstreamUnavailable(f"The stream of {self._source!r} ended before its answer did.")

    def _frame(self, data: bytes) -> bytes:
        """The client's frame for one upstream event; empty for what the client is not to see."""
        if data == DONE or self.failure is not None:
            return b""
        collector = self.collector
        was_complete = collector.complete
        usage_before = collector.usage
        collector.add(data)
        if collector.error is not None:
            self.failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            return b""
        if not self._include_usage and collector.usage is not usage_before and _is_usage_only(data):
            return b""
        fields = self._all_fields if collector.complete and not was_complete else self._fields
        if self._early is not None:
            return self._early.adopted(data, fields)
        return b"data: " + spliced(data, fields) + b"\n\n"


async def finished_whole(reply: Reply, source: str) -> tuple[bytes, Collector]:
    """The body of an answer that is not streamed, and what it amounts to.

    Raises:
        UpstreamUnavailable: it broke off, or is not a chat completion.
        UpstreamRefused: it is an error in spite of its status.
    """
    body = await reply.read()
    collector = Collector()
    collector.add_completion(body)
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {})
    if not collector.has_content and collector.finish_reason is None:
        raise UpstreamUnavailable(f"{source!r} answered with something that is not a chat completion.")
    return body, collector


def _is_usage_only(data: bytes) -> bool:
    """Whether a chunk carries usage and no choice: it came because we asked for it."""
    return not orjson.loads(data).get("choices")
