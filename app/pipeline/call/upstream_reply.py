"""Reads an upstream's reply: a whole body, or a stream up to its first event. Some servers refuse a request with status
200."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from app.dialects.answer_format import ORIGINAL_EVENT
from app.dialects.chat.completion import ANSWER_KEY
from app.dialects.chat.stream_collector import StreamCollector
from app.dialects.chat.stream_relay import BAD_GATEWAY
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.upstream.provider_contract import ModelDeployment, UpstreamReply
from app.upstream.routing.router import BufferedReply

STREAM_CONTENT_TYPE: Final = "text/event-stream"


def is_expected_reply(reply: UpstreamReply | StreamReply, *, stream: bool) -> bool:
    """Whether a reply is a success and has the form that was asked for: a stream, or no stream."""
    return 200 <= reply.status < 300 and reply.headers.get("content-type", "").startswith(STREAM_CONTENT_TYPE) == stream


def build_bad_answer_error(deployment: ModelDeployment, reason: str) -> UpstreamUnavailable:
    """Builds the error for a reply that is not a chat completion. Its hint names the setting `base_url`, because mostly
    another kind of server answers at that address.

    Args:
        deployment: the deployment that replied.
        reason: what the deployment did, such as ``answered with status 204``.
    """
    setting = f"providers.{deployment.provider.name}.base_url"
    return UpstreamUnavailable(f"{deployment.key!r} {reason}.", hint=f"Check {setting}.")


async def read_first_event_or_body(
    reply: UpstreamReply, *, stream: bool, source: str
) -> tuple[StreamReply | BufferedReply, bytes | None]:
    """Reads a stream up to its first event, or a reply that is not a stream to its end.

    Returns:
        The reply for further reading, and the error body or the first event's data if that is not an answer; None
        if it is an answer.

    Raises:
        UpstreamUnavailable: the reply ended or broke off before that.
    """
    if stream and is_expected_reply(reply, stream=True):
        try:
            return await _read_until_first_event(reply, source)
        # Also on cancellation: a connection that nobody closes stays open, and the provider goes on generating.
        except BaseException:
            await reply.aclose()
            raise
    try:
        body = await reply.read()
    finally:
        await reply.aclose()
    whole_reply = BufferedReply(reply.status, reply.headers, body, reply.original_body)
    return whole_reply, None if is_expected_reply(whole_reply, stream=stream) and ANSWER_KEY in body else body


async def _read_until_first_event(reply: UpstreamReply, source: str) -> tuple[StreamReply, bytes | None]:
    decoder = SseDecoder(source)
    remaining_bytes = reply.iter_bytes()
    first_events: list[SseEvent] = []
    async for piece in remaining_bytes:
        events = decoder.feed(piece)
        first_events += events
        data = _find_first_data(events)
        if data is not None:
            return StreamReply(reply, first_events, remaining_bytes, decoder), None if ANSWER_KEY in data else data
    events = decoder.flush()
    data = _find_first_data(events)
    if data is None:
        raise UpstreamUnavailable(f"The stream of {source!r} ended before its answer began.")
    return StreamReply(reply, first_events + events, remaining_bytes, decoder), None if ANSWER_KEY in data else data


def _find_first_data(events: Sequence[SseEvent]) -> bytes | None:
    """Finds the first chunk among events. An event of the provider's own protocol is none: a stream that begins with
    `response.created` may still report an overflow.
    """
    return next(
        (event.data for event in events if event.data and event.data.strip() and event.name != ORIGINAL_EVENT), None
    )


class StreamReply:
    """A streamed reply whose first event has come.

    Attributes:
        first_events: the events that have come.
        remaining_bytes: the bytes after these events, for `decoder`.
        decoder: the decoder of the stream; it may hold the beginning of an event.
    """

    def __init__(
        self,
        reply: UpstreamReply,
        first_events: list[SseEvent],
        remaining_bytes: AsyncIterator[bytes],
        decoder: SseDecoder,
    ) -> None:
        self._reply = reply
        self.first_events = first_events
        self.remaining_bytes = remaining_bytes
        self.decoder = decoder
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def aclose(self) -> None:
        await self._reply.aclose()


def parse_whole_answer(body: bytes, deployment: ModelDeployment) -> StreamCollector:
    """Collects a deployment's answer that is not streamed.

    Raises:
        UpstreamUnavailable: the body is not a chat completion.
        UpstreamRefused: the body is an error although its status is 200.
    """
    collector = StreamCollector(deployment.key)
    try:
        collector.add_completion(body)
    except UpstreamUnavailable as error:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion") from error
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    # A finish reason alone is an answer: a model may stop at once, with nothing to say.
    if not collector.has_content and collector.finish is None:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion")
    return collector
