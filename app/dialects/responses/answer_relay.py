"""Relays the upstream's stream to a client of the Responses API, and assembles the answer for the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.conversation.item import Item
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue, Begin
from app.dialects.assembled_answer import AssembledAnswer
from app.dialects.items.message import build_items_message
from app.dialects.responses.answer_message import build_answer_message, build_kept_items
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import find_incomplete_reason
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.responses.stream_encoder import ResponsesStreamEncoder
from app.dialects.responses.stream_splicer import ResponsesStreamSplicer
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.errors import GatewayError


class ResponsesStreamRelay(StreamRelay):
    """Turns the bytes of the upstream's stream into the events of a response.

    Args:
        answer: decodes the events: a Responses provider's are relayed while it watches, those of another are written
            from the values that it makes.
        lifecycle: writes the stream's beginning and end. The stream may have begun with the progress of a compaction.
        tool_names: as of `ResponsesStreamEncoder`.
    """

    def __init__(
        self,
        answer: AnswerDecoder,
        options: RelayOptions,
        lifecycle: LifecycleWriter,
        tool_names: Mapping[str, tuple[str, str]],
    ) -> None:
        super().__init__(answer, options)
        self._decoder = answer
        self._lifecycle = lifecycle
        self._encoder = ResponsesStreamEncoder(lifecycle.response, lifecycle.events, tool_names)
        self._encoder.items = lifecycle.first_items
        self._splicer: ResponsesStreamSplicer | None = None
        if isinstance(answer, ResponsesStreamDecoder):
            self._splicer = ResponsesStreamSplicer(answer, lifecycle, options.fields)
        self._passed_items: Mapping[int, bytes] = {}
        """The provider's items that passed before values came in the place of its events, by index."""
        self._end_of_items = b""
        """Frames that end the items, written before the answer is stored and sent after it."""
        self._end_number: int | None = None
        """The sequence number of the first of these frames; None if they are not written yet."""

    @property
    def answer_id(self) -> str | None:
        return self._lifecycle.response.response_id

    def _relay_event(self, data: bytes, name: bytes) -> bytes:
        decoder, splicer = self._decoder, self._splicer
        frames = self._write_values(decoder.decode(data, name)) if splicer is None else splicer.relay_event(data, name)
        if decoder.error_data is not None and self.stream_failure is None:
            self._fail(decoder.error_data)
        elif decoder.has_ended:
            self.is_upstream_done = self.has_ended = True
        return frames

    def render_heartbeat(self) -> bytes:
        if self.has_ended or self.answer.is_complete or not self._lifecycle.has_begun:
            return b""
        return self._lifecycle.write_progress(self._fields, self.answer.model)

    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        answer = self.answer
        if not isinstance(answer, AssembledAnswer):
            answer = AssembledAnswer()
            self._continue_passed_items(answer)
        answer.add(values)
        frames = self._write_values(values)
        if answer.error_data is not None:
            self._fail(answer.error_data)
        return frames

    def _continue_passed_items(self, answer: AssembledAnswer) -> None:
        """Lets the encoder continue after the provider's items that have passed, and `answer` in the place of the
        provider's."""
        answer.id, answer.model, answer.has_content = self.answer.id, self.answer.model, self.answer.has_content
        if self._splicer is not None:
            self._passed_items = self._decoder.ended_items if isinstance(self._decoder, ResponsesStreamDecoder) else {}
            items, open_items = self._splicer.read_passed_items()
            self._encoder.continue_after([*self._lifecycle.first_items, *items], open_items)
            self._splicer = None
        self.answer = answer

    def build_answer_message(self) -> Item:
        """Returns the answer as the log keeps it: the provider's own items if it speaks Responses."""
        self._end_items()
        if self._splicer is not None:
            return build_items_message(self._splicer.list_items())
        items = self._encoder.items[len(self._lifecycle.first_items) :]
        if self._passed_items:
            return build_kept_items(items, self._passed_items)
        return build_answer_message(self.answer.build_item(), items, self._lifecycle.response)

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the last event, with the whole response object."""
        answer = self.answer
        fields = self._render_last_fields(answer.usage) if changed_fields is None else changed_fields
        has_passed = isinstance(answer, ResponsesStreamDecoder) and answer.last_response is not None
        if self._splicer is not None and has_passed:
            return self._splicer.write_end(fields)
        self._end_items()
        frames_before = self._lifecycle.write_begin(self._fields, answer.model) + self._end_of_items
        return self._lifecycle.write_end(
            fields,
            frames_before,
            model=answer.model,
            output=self._encoder.items,
            usage=answer.usage,
            finish=answer.finish,
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
        first_items = self._lifecycle.first_items
        output = self._encoder.items if splicer is None else [*first_items, *splicer.list_shown_items()]
        return self._lifecycle.write_end(
            fields, frames_before, error, model=answer.model, output=output, usage=answer.usage
        )

    def _write_values(self, values: Sequence[AnswerValue]) -> bytes:
        begin = b""
        if not self._lifecycle.has_begun and values and isinstance(values[0], Begin):
            begin = self._lifecycle.write_begin(self._fields, values[0].model)
        if self._lifecycle.compaction is not None and self._lifecycle.has_begun:
            begin += self._lifecycle.write_compaction()
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
