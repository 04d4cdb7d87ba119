"""Reads a summarizer's reply: a stream, or the whole body of a server that does not stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from app.dialects.chat.completion import FirstChoice, read_first_choice, read_streamed_choice
from app.dialects.chat.stream_collector import StreamCollector
from app.dialects.chat.stream_frames import ERROR_EVENT, is_done_event
from app.dialects.chat.stream_relay import BAD_GATEWAY
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.upstream.http.http_client_contract import drain_stream
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.provider_contract import UpstreamReply
from app.upstream.routing.router import STATUS_OK

STREAM_CONTENT_TYPE = "text/event-stream"
BAD_REQUEST = 400


async def read_completion(reply: UpstreamReply, source: str, on_piece: Callable[[], None]) -> FirstChoice:
    """Reads the completion of a reply to its end.

    Args:
        reply: a reply whose head has come.
        source: the provider's name, for error messages.
        on_piece: called after each piece of a stream.

    Raises:
        UpstreamRefused: the reply is an error, or the stream has one.
        UpstreamUnavailable: the reply broke off, or is not a completion.
    """
    is_stream = reply.headers.get("content-type", "").startswith(STREAM_CONTENT_TYPE)
    if is_stream and reply.status == STATUS_OK:
        return await _read_stream(reply, source, on_piece)
    raw = await reply.read()
    if reply.status != STATUS_OK:
        raise UpstreamRefused(reply.status, raw, reply.headers)
    return decode_completion(raw)


def decode_completion(raw: bytes) -> FirstChoice:
    """Decodes the body of a completion that is not streamed.

    Raises:
        UpstreamUnavailable: it is not a JSON object.
    """
    try:
        completion = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable("The summarizer's answer is not valid JSON.") from error
    if not isinstance(completion, dict):
        raise UpstreamUnavailable("The summarizer's answer is not a JSON object.")
    return read_first_choice(completion)


async def _read_stream(reply: UpstreamReply, source: str, on_piece: Callable[[], None]) -> FirstChoice:
    collector, decoder = StreamCollector(source), SseDecoder(source)
    pieces = reply.iter_bytes()
    try:
        async for piece in pieces:
            on_piece()
            if _add_events(collector, decoder.feed(piece)):
                await drain_stream(pieces)
                break
        else:
            _add_events(collector, decoder.flush())
    except UpstreamUnavailable:
        # A complete answer stands even if the connection broke afterwards: only `[DONE]` or the usage is missing.
        if not collector.is_complete:
            raise
    return read_streamed_choice(collector)


def _add_events(collector: StreamCollector, events: Sequence[SseEvent]) -> bool:
    """Adds events to a completion. Returns whether the stream says that it has ended.

    Raises:
        UpstreamRefused: an event is an error.
        UpstreamUnavailable: the data of an event is not a JSON object.
    """
    for event in events:
        if is_done_event(event):
            return True
        if event.data is None or not event.data.strip():
            continue
        collector.add_chunk(event.data)
        if collector.error is not None or event.name == ERROR_EVENT:
            data = collector.error_data or event.data
            # An overflow gets the status that it has outside of a stream: then the call is repeated with less input.
            is_overflow = detect_overflow(BAD_GATEWAY, data) is not None
            raise UpstreamRefused(BAD_REQUEST if is_overflow else BAD_GATEWAY, data, {})
    return False
