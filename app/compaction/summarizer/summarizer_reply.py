"""Reads a summarizer's reply: a stream, or the whole body of a server that does not stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.dialects.answer_decoding import BAD_GATEWAY, AnswerDecoder, drop_cut_events
from app.dialects.answer_events import AnswerValue
from app.dialects.first_choice import FirstChoice, read_first_choice
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.upstream.http.http_client_contract import drain_stream
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.provider_contract import ModelDeployment, UpstreamReply
from app.upstream.routing.router import STATUS_OK

STREAM_CONTENT_TYPE = "text/event-stream"
BAD_REQUEST = 400


async def read_completion(
    reply: UpstreamReply, deployment: ModelDeployment, on_piece: Callable[[], None]
) -> FirstChoice:
    """Reads the completion of a reply to its end.

    Args:
        reply: a reply whose head has come.
        deployment: whose reply it is.
        on_piece: called after each piece of a stream.

    Raises:
        UpstreamRefused: the reply is an error, or the stream has one.
        UpstreamUnavailable: the reply broke off, or is not a completion.
    """
    answer = PROVIDER_DIALECTS[deployment.provider.protocol].make_decoder(deployment.key)
    is_stream = reply.headers.get("content-type", "").startswith(STREAM_CONTENT_TYPE)
    if is_stream and reply.status == STATUS_OK:
        return await _read_stream(reply, answer, deployment.key, on_piece)
    raw = await reply.read()
    if reply.status != STATUS_OK:
        raise UpstreamRefused(reply.status, raw, reply.headers)
    answer.add_whole(raw)
    return read_first_choice(answer, () if answer.error_data else answer.decode_whole(raw))


async def _read_stream(
    reply: UpstreamReply, answer: AnswerDecoder, source: str, on_piece: Callable[[], None]
) -> FirstChoice:
    sse_decoder = SseDecoder(source)
    values: list[AnswerValue] = []
    pieces = reply.iter_bytes()
    try:
        async for piece in pieces:
            on_piece()
            values += _decode_events(answer, sse_decoder.feed(piece))
            if answer.has_ended:
                await drain_stream(pieces)
                break
        else:
            values += _decode_events(answer, drop_cut_events(sse_decoder.flush(), answer.protocol))
    except UpstreamUnavailable:
        # A complete answer stands even if the connection broke afterwards: only `[DONE]` or the usage is missing.
        if not answer.is_complete:
            raise
    return read_first_choice(answer, values)


def _decode_events(answer: AnswerDecoder, events: Sequence[SseEvent]) -> list[AnswerValue]:
    """Decodes events up to the end of the answer.

    Raises:
        UpstreamRefused: an event is an error.
        UpstreamUnavailable: the data of an event is not a JSON object.
    """
    values: list[AnswerValue] = []
    for event in events:
        data = event.data.strip() if event.data else b""
        if not data or answer.has_ended:
            continue
        values += answer.decode(data, event.name)
        if answer.error_data is not None:
            # An overflow gets the status that it has outside of a stream: then the call is repeated with less input.
            is_overflow = detect_overflow(BAD_GATEWAY, answer.error_data) is not None
            raise UpstreamRefused(BAD_REQUEST if is_overflow else BAD_GATEWAY, answer.error_data, {})
    return values
