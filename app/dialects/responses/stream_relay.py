"""Relays the upstream's stream to a client of the Responses API, and collects the answer for the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.conversation.item import Item
from app.dialects.answer_format import ORIGINAL_EVENT
from app.dialects.chat.stream_frames import ERROR_EVENT
from app.dialects.chat.stream_relay import BAD_GATEWAY, StreamRelay
from app.dialects.responses.answer_message import build_answer_message
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.message import ResponsesMessage
from app.dialects.responses.original_events import OriginalEvents
from app.dialects.responses.output_writer import LOGPROBS_KEY, OutputWriter, read_logprobs
from app.dialects.responses.response_object import find_incomplete_reason
from app.dialects.sse import SseDecoder
from app.errors import GatewayError, UpstreamRefused


class ResponsesStreamRelay(StreamRelay):
    """Turns the bytes of the upstream's stream into the events of a response.

    Args:
        decoder, fields, render_last_fields, source: as of `StreamRelay`.
        lifecycle: writes the stream's beginning and end. The stream may have begun with the progress of a compaction.
        tool_names: as of `OutputWriter`.
    """

    def __init__(
        self,
        decoder: SseDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        source: str,
        lifecycle: LifecycleWriter,
        tool_names: Mapping[str, tuple[str, str]],
    ) -> None:
        super().__init__(decoder, fields, render_last_fields, include_usage=True, progress_stream=None, source=source)
        self._lifecycle = lifecycle
        self._output = OutputWriter(lifecycle.response, self.collector.first_choice, lifecycle.events, tool_names)
        self._originals = OriginalEvents(lifecycle, fields)
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
        return self._originals.last_response

    def build_answer_message(self) -> Item:
        """Returns the answer as the log keeps it: the provider's own items if it speaks Responses."""
        self._end_items()
        if self._originals.have_come and (items := self._originals.list_items()):
            return ResponsesMessage.from_raw_items(items)
        return build_answer_message(self.collector.build_message(), self._output.items, self._lifecycle.response)

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the last event, with the whole response object."""
        fields = self._render_last_fields(self.collector.usage) if changed_fields is None else changed_fields
        if self._originals.has_end:
            return self._originals.write_end(fields)
        self._end_items()
        frames_before = self._lifecycle.write_begin(self._fields, self.collector.model) + self._end_of_items
        return self._lifecycle.write_end(
            fields,
            frames_before=frames_before,
            model=self.collector.model,
            output=self._output.items,
            usage=self.collector.usage,
            incomplete_reason=find_incomplete_reason(self.collector.finish),
        )

    def render_failure(self, error: GatewayError) -> bytes:
        """Renders the end of a stream that has failed. The items that have not come to their end get no event
        `response.output_item.done`: with that event, a client runs a call and keeps a text, and then both are there
        twice when it sends the request again. The failed response lists them."""
        fields = self._render_last_fields(self.collector.usage)
        if error is self.stream_failure and self._originals.has_failed:
            return self._originals.write_end(fields)
        frames_before = self._lifecycle.write_begin(self._fields, self.collector.model)
        self._end_items()
        if self._end_number is not None:
            self._lifecycle.events.next_number = self._end_number
        return self._lifecycle.write_failure(
            error,
            fields,
            frames_before=frames_before,
            model=self.collector.model,
            output=self._originals.list_shown_items() if self._originals.have_come else self._output.items,
            usage=self.collector.usage,
        )

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        if name == ORIGINAL_EVENT:
            return self._originals.relay_event(data)
        collector = self.collector
        was_complete = collector.is_complete
        collector.add_chunk(data)
        if collector.error is not None or name == ERROR_EVENT:
            # The HTTP status is already 200; 502 is what the failure would have been.
            self.stream_failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self.has_ended = True
            return b""
        if self._originals.have_come:
            return b""
        lifecycle = self._lifecycle
        begin = b"" if lifecycle.has_begun else lifecycle.write_begin(self._fields, collector.model)
        if lifecycle.response.shows_logprobs and LOGPROBS_KEY in data:
            frames = self._output.write_new_content(read_logprobs(data))
        else:
            frames = self._output.write_new_content()
        if collector.is_complete and not was_complete:
            # A client can run the calls while the answer is stored.
            frames += self._output.write_end(is_cut_off=find_incomplete_reason(collector.finish) is not None)
        return begin + frames if begin else frames

    def _end_items(self) -> None:
        """Ends the items that are open. An answer that has not come to its end is cut off."""
        if self._end_number is None:
            self._end_number = self._lifecycle.events.next_number
        if self._originals.have_come:
            self._end_of_items += self._originals.write_open_items_end()
            return
        is_cut_off = self.stream_failure is not None or not self.collector.is_complete
        self._end_of_items += self._output.write_end(
            is_cut_off=is_cut_off or find_incomplete_reason(self.collector.finish) is not None
        )
