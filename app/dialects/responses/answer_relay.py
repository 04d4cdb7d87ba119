"""Relays the upstream's stream to a client of the Responses API, and assembles the answer for the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.conversation.item import Item
from app.dialects.answer_decoding import BAD_GATEWAY, AnswerDecoder, drop_cut_events
from app.dialects.answer_events import AnswerValue, Begin, Failure
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.responses.answer_message import build_answer_message, build_items_message
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import find_incomplete_reason
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.responses.stream_encoder import ResponsesStreamEncoder
from app.dialects.responses.stream_splicer import ResponsesStreamSplicer
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks


class ResponsesStreamRelay:
    """Turns the bytes of the upstream's stream into the events of a response. Implements
    `dialects.answer_format.AnswerRelay`.

    Args:
        sse_decoder: cuts the stream into events; it may hold the beginning of one.
        answer: decodes the events: a Responses provider's are relayed while it watches, those of another are written
            from the values that it makes.
        fields, render_last_fields, source: as of `ChatStreamSplicer`.
        lifecycle: writes the stream's beginning and end. The stream may have begun with the progress of a compaction.
        tool_names: as of `ResponsesStreamEncoder`.
    """

    def __init__(
        self,
        sse_decoder: SseDecoder,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        source: str,
        lifecycle: LifecycleWriter,
        tool_names: Mapping[str, tuple[str, str]],
    ) -> None:
        self.answer = answer
        self.has_ended = self.is_upstream_done = False
        self.stream_failure: GatewayError | None = None
        self._sse_decoder = sse_decoder
        self._fields = fields
        self._render_last_fields = render_last_fields
        self._source = source
        self._lifecycle = lifecycle
        self._encoder = ResponsesStreamEncoder(lifecycle.response, lifecycle.events, tool_names)
        self._splicer: ResponsesStreamSplicer | None = None
        if isinstance(answer, ResponsesStreamDecoder):
            self._splicer = ResponsesStreamSplicer(answer, lifecycle, fields)
        self._end_of_items = b""
        """Frames that end the items, written before the answer is stored and sent after it."""
        self._end_number: int | None = None
        """The sequence number of the first of these frames; None if they are not written yet."""

    @property
    def answer_id(self) -> str | None:
        return self._lifecycle.response.response_id

    @property
    def last_original_response(self) -> bytes | None:
        """The response object with which a Responses provider ended its stream; None if it has sent none."""
        return self.answer.last_response if isinstance(self.answer, ResponsesStreamDecoder) else None

    def feed(self, piece: bytes) -> bytes:
        return self.relay_events(self._sse_decoder.feed(piece))

    def flush(self) -> bytes:
        return self.relay_events(drop_cut_events(self._sse_decoder.flush(), self.answer))

    def relay_events(self, events: Sequence[SseEvent]) -> bytes:
        frames = []
        answer, splicer = self.answer, self._splicer
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data:
                continue
            try:
                if splicer is None:
                    frames.append(self._write_values(answer.decode(data, event.name)))
                else:
                    frames.append(splicer.relay_event(data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                # Some servers append data that is not JSON after the answer. The client has the answer by then.
                self.stream_failure = None if answer.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if answer.error_data is not None and self.stream_failure is None:
                # The HTTP status is already 200; 502 is what the failure would have been.
                self.stream_failure, self.has_ended = UpstreamRefused(BAD_GATEWAY, answer.error_data, {}), True
            elif answer.has_ended:
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return b"".join(frames)

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        if stream_error is not None:
            drop_tracebacks(stream_error)
        # A complete answer stands even if the connection broke afterwards: only its usage is missing.
        if self.stream_failure is None and not self.answer.is_complete:
            self.stream_failure = stream_error or UpstreamUnavailable(
                f"The stream of {self._source!r} ended before the answer was complete."
            )

    def build_answer_message(self) -> Item:
        """Returns the answer as the log keeps it: the provider's own items if it speaks Responses."""
        self._end_items()
        if self._splicer is not None:
            return build_items_message(self._splicer.list_items())
        assert isinstance(self.answer, ChatStreamDecoder)
        return build_answer_message(self.answer.build_message(), self._encoder.items, self._lifecycle.response)

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the last event, with the whole response object."""
        answer = self.answer
        fields = self._render_last_fields(answer.usage) if changed_fields is None else changed_fields
        if self._splicer is not None and self.last_original_response is not None:
            return self._splicer.write_end(fields)
        self._end_items()
        frames_before = self._lifecycle.write_begin(self._fields, answer.model) + self._end_of_items
        return self._lifecycle.write_end(
            fields,
            frames_before=frames_before,
            model=answer.model,
            output=self._encoder.items,
            usage=answer.usage,
            incomplete_reason=find_incomplete_reason(answer.finish),
        )

    def render_failure(self, error: GatewayError) -> bytes:
        """Renders the end of a stream that has failed. The items that have not come to their end get no event
        `response.output_item.done`: with that event, a client runs a call and keeps a text, and then both are there
        twice when it sends the request again. The failed response lists them."""
        answer, splicer = self.answer, self._splicer
        fields = self._render_last_fields(answer.usage)
        has_failed = isinstance(answer, ResponsesStreamDecoder) and answer.has_failed
        if splicer is not None and has_failed and error is self.stream_failure:
            return splicer.write_end(fields)
        frames_before = self._lifecycle.write_begin(self._fields, answer.model)
        self._end_items()
        if self._end_number is not None:
            self._lifecycle.events.next_number = self._end_number
        return self._lifecycle.write_failure(
            error,
            fields,
            frames_before=frames_before,
            model=answer.model,
            output=self._encoder.items if splicer is None else splicer.list_shown_items(),
            usage=answer.usage,
        )

    def _write_values(self, values: Sequence[AnswerValue]) -> bytes:
        begin = b""
        if not self._lifecycle.has_begun and values and isinstance(values[0], Begin):
            begin = self._lifecycle.write_begin(self._fields, values[0].model)
        if values and isinstance(values[-1], Failure):
            return b""
        return begin + self._encoder.encode(values)

    def _end_items(self) -> None:
        """Ends the items that are open. An answer that has not come to its end is cut off."""
        if self._end_number is None:
            self._end_number = self._lifecycle.events.next_number
        if self._splicer is not None:
            self._end_of_items += self._splicer.write_open_items_end()
            return
        is_cut_off = self.stream_failure is not None or not self.answer.is_complete
        self._end_of_items += self._encoder.encode(self.answer.decode_rest()) + self._encoder.write_end(
            is_cut_off=is_cut_off or find_incomplete_reason(self.answer.finish) is not None
        )
