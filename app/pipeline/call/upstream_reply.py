"""Reads an upstream's reply: a whole body, or a stream up to its first event. Some servers refuse a request with status
200."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.dialects.answer_decoding import BAD_GATEWAY, AnswerDecoder, drop_cut_events
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.upstream.http.http_client_contract import drain_stream
from app.upstream.provider_contract import ModelDeployment, UpstreamReply
from app.upstream.routing.router import STATUS_OK, BufferedReply

FORWARDED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
FORWARDED_HEADER_PREFIXES: Final = ("x-ratelimit-", "openai-", "anthropic-")
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
    reply: UpstreamReply, deployment: ModelDeployment, *, stream: bool
) -> tuple[StreamReply | BufferedReply, bytes | None]:
    """Reads a stream up to its first event that tells what it is, or a reply that is not a stream to its end.

    Returns:
        The reply for further reading, and the error body or the first event's data if that is not an answer; None
        if it is an answer.

    Raises:
        UpstreamUnavailable: the reply ended or broke off before that.
    """
    if stream and is_expected_reply(reply, stream=True):
        try:
            return await _read_until_first_event(reply, deployment)
        # Also on cancellation: a connection that nobody closes stays open, and the provider goes on generating.
        except BaseException:
            await reply.aclose()
            raise
    try:
        body = await reply.read()
    finally:
        await reply.aclose()
    protocol = deployment.provider.protocol
    find_answer_start = PROVIDER_DIALECTS[protocol].find_answer_start
    whole_reply = BufferedReply(reply.status, reply.headers, body, protocol)
    is_expected = is_expected_reply(whole_reply, stream=stream)
    if protocol == "openai" or reply.status != STATUS_OK:
        return whole_reply, None if is_expected and find_answer_start(body) is True else body
    decoder = _add_whole_body(PROVIDER_DIALECTS[protocol].make_decoder(deployment.key), body, deployment)
    # A response in place of a stream is no error whose words could be passed on.
    return whole_reply, decoder.error_data or (None if is_expected else b"")


async def _read_until_first_event(
    reply: UpstreamReply, deployment: ModelDeployment
) -> tuple[StreamReply, bytes | None]:
    sse_decoder, protocol = SseDecoder(deployment.key), deployment.provider.protocol
    remaining_bytes = reply.iter_bytes()
    first_events: list[SseEvent] = []
    async for piece in remaining_bytes:
        events = sse_decoder.feed(piece)
        first_events += events
        start = _find_start(events, protocol)
        if start is not None:
            stream_reply = StreamReply(reply, first_events, remaining_bytes, sse_decoder, protocol)
            return stream_reply, None if start is True else start
    events = sse_decoder.flush()
    start = _find_start(events, protocol)
    if start is None:
        raise UpstreamUnavailable(f"The stream of {deployment.key!r} ended before its answer began.")
    stream_reply = StreamReply(reply, first_events + events, remaining_bytes, sse_decoder, protocol)
    return stream_reply, None if start is True else start


def _find_start(events: Sequence[SseEvent], protocol: str) -> bytes | Literal[True] | None:
    dialect = PROVIDER_DIALECTS[protocol]
    starts = (dialect.find_answer_start(event.data, event.name) for event in events if event.data)
    return next((start for start in starts if start is not None), None)


@dataclass(eq=False)
class StreamReply:
    """A streamed reply whose first event has come."""

    reply: UpstreamReply
    first_events: Sequence[SseEvent]
    """The events that have come."""
    pieces: AsyncIterator[bytes]
    sse_decoder: SseDecoder
    protocol: str
    """The protocol of the events."""

    def __post_init__(self) -> None:
        self.status = self.reply.status
        self.headers: Mapping[str, str] = self.reply.headers
        self._has_ended = False

    def iter_events(self) -> AsyncIterator[Sequence[SseEvent]]:
        """Yields the events after the first ones, those that came together at once.

        Raises:
            UpstreamUnavailable: while iterating, if the stream breaks off.
        """
        return self

    # No generator: one that is left before its end costs a task.
    def __aiter__(self) -> AsyncIterator[Sequence[SseEvent]]:
        return self

    async def __anext__(self) -> Sequence[SseEvent]:
        if self._has_ended:
            raise StopAsyncIteration
        try:
            return self.sse_decoder.feed(await anext(self.pieces))
        except StopAsyncIteration:
            self._has_ended = True
        return drop_cut_events(self.sse_decoder.flush(), self.protocol)

    async def drain(self) -> None:
        """Reads the rest of a stream whose last event has come: its connection can be used again only then."""
        await drain_stream(self.pieces)

    async def aclose(self) -> None:
        await self.reply.aclose()


def parse_whole_answer(body: bytes, deployment: ModelDeployment, protocol: str) -> AnswerDecoder:
    """Reads a deployment's answer that is not streamed.

    Args:
        protocol: the protocol of the body.

    Raises:
        UpstreamUnavailable: the body is not an answer.
        UpstreamRefused: the body is an error although its status is 200.
    """
    answer = _add_whole_body(PROVIDER_DIALECTS[protocol].make_decoder(deployment.key), body, deployment)
    if answer.error_data is not None:
        raise UpstreamRefused(BAD_GATEWAY, answer.error_data, {"content-type": "application/json"})
    # A finish reason alone is an answer: a model may stop at once, with nothing to say.
    if not answer.has_content and answer.finish is None:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion")
    return answer


def _add_whole_body(answer: AnswerDecoder, body: bytes, deployment: ModelDeployment) -> AnswerDecoder:
    try:
        answer.add_whole(body)
    except UpstreamUnavailable as error:
        if answer.protocol == "openai":
            raise build_bad_answer_error(deployment, "answered with something that is not a chat completion") from error
        # Mostly another kind of server answers at that address.
        name = deployment.provider.name
        raise UpstreamUnavailable(
            f"{name!r} answered with something that is not a response of the Responses API.",
            hint=f"Check providers.{name}.base_url and providers.{name}.protocol.",
        ) from error
    return answer


def select_forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Selects the headers of an upstream's response that the client may see."""
    return {
        name: value
        for name, value in headers.items()
        if name in FORWARDED_HEADERS or name.startswith(FORWARDED_HEADER_PREFIXES)
    }
