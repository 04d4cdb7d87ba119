"""Relays the upstream's stream to the client, mostly without decoding it, and collects the answer for the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.dialects.chat.chunk_template import ChunkTemplate, build_chunk_template, find_text
from app.dialects.chat.stream_collector import StreamCollector
from app.dialects.chat.stream_frames import (
    DONE_DATA,
    ERROR_EVENT,
    CompactionProgressStream,
    decode_chunk,
    encode_chunk,
    splice_fields,
)
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks

BAD_GATEWAY: Final = 502
"""The status of an error that comes in an answer with status 200."""
IDENTITY_FIELDS: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that are equal in all chunks of a stream."""
MAX_TEMPLATES: Final = 8
"""How many chunk templates are built for a stream. A stream whose chunks change their form more often is decoded
chunk by chunk."""
EVENT_END: Final = b"\n\n"
MAX_HELD_BYTES: Final = 65_536
"""A partial event above this size stays in the decoder: joining it with each new piece would cost more than the
template saves."""


class StreamRelay:
    """Turns the bytes of the upstream's stream into the client's frames. Does no I/O and never waits.

    Args:
        decoder: the decoder of the stream; it may hold the beginning of an event.
        fields: our fields for each chunk, as `splice_fields` takes them.
        render_last_fields: renders our fields for the chunk that completes the answer.
        include_usage: whether the client asked for usage.
        progress_stream: renders the chunks if the stream began with the progress of a compaction; otherwise None.
        source: the deployment's key, for error messages.

    Attributes:
        collector: the answer, as far as it has come.
        has_ended: the end of the stream or a failure has come; nothing more is relayed.
        is_upstream_done: the upstream has sent `[DONE]`, or data that cannot be part of an answer.
        stream_failure: why the answer is not whole; None while there is no failure.
    """

    def __init__(
        self,
        decoder: SseDecoder,
        fields: bytes,
        render_last_fields: Callable[[], bytes],
        *,
        include_usage: bool,
        progress_stream: CompactionProgressStream | None,
        source: str,
    ) -> None:
        self._decoder = decoder
        self._fields = fields
        self._render_last_fields = render_last_fields
        self._include_usage = include_usage
        self._progress_stream = progress_stream
        self._source = source
        self._chunk_template: ChunkTemplate | None = None
        self._last_chunk: bytes | None = None
        """The provider's chunk that completed the answer."""
        self._may_hold_partial_event = True
        """Whether the decoder may hold the beginning of an event."""
        # After the progress of a compaction each chunk gets our identity, so each must be decoded.
        self._templates_left = MAX_TEMPLATES if progress_stream is None else 0
        self.is_upstream_done = False
        self.has_ended = False
        self.collector = StreamCollector(source)
        self.stream_failure: GatewayError | None = None

    @property
    def completion_id(self) -> str | None:
        """The completion's id in the client's frames."""
        return self.collector.id if self._progress_stream is None else self._progress_stream.completion_id

    def feed(self, piece: bytes) -> bytes:
        """Renders the frames for the next bytes of the stream, without error events and `[DONE]`.

        A piece that consists of chunks of the known form is rewritten by its bytes alone.
        """
        template = self._chunk_template
        # A template compares whole events, so the beginning that the decoder holds must come back first.
        if self._may_hold_partial_event and template is not None:
            partial_event = self._decoder.take_unfinished(MAX_HELD_BYTES)
            if partial_event is None:
                return self._relay_event_by_event(piece)
            self._may_hold_partial_event = False
            piece = partial_event + piece
        match = None if template is None else template.match_chunks(piece)
        if match is None:
            return self._relay_event_by_event(piece)
        text, chunk_count, frames, remaining_bytes = match
        self.collector.add_text(text, chunk_count)
        return frames + self._relay_event_by_event(remaining_bytes) if remaining_bytes else frames

    def _relay_event_by_event(self, piece: bytes) -> bytes:
        """Renders the frames for events that are decoded one by one.

        If the first event yields a new chunk template, the rest of the piece goes through the template.
        """
        # `find` returns -1 without an event's end: `end` is then not above the length of EVENT_END, and the test below
        # fails.
        template_before, end = self._chunk_template, piece.find(EVENT_END) + len(EVENT_END)
        if self._templates_left and len(EVENT_END) < end < len(piece):
            frames = self.relay_events(self._decoder.feed(piece[:end]))
            if self.has_ended:
                return frames
            if self._chunk_template is not template_before:
                return frames + self.feed(piece[end:])
            piece = piece[end:]
        else:
            frames = b""
        self._may_hold_partial_event = not piece.endswith(EVENT_END)
        rest = self.relay_events(self._decoder.feed(piece))
        return frames + rest if frames else rest

    def flush(self) -> bytes:
        """Renders the frames for an event that the upstream's end cut off from its blank line."""
        return self.relay_events(self._decoder.flush())

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Notes that no more bytes come, and that the answer is incomplete if its finish reason is missing.

        Args:
            stream_error: the error that broke the stream off; None if the upstream ended it.
        """
        if stream_error is not None:
            drop_tracebacks(stream_error)
        # A complete answer stands even if the connection broke afterwards: only `[DONE]` or the usage is missing.
        if self.stream_failure is None and not self.collector.is_complete:
            self.stream_failure = stream_error or UpstreamUnavailable(
                f"The stream of {self._source!r} ended before the answer was complete."
            )

    def relay_events(self, events: list[SseEvent]) -> bytes:
        """Renders the frames for events, up to the first failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            # Comments and keep-alives have no data. They are for our connection, not for the client's.
            if not data:
                continue
            if data == DONE_DATA:
                self.is_upstream_done = self.has_ended = True
                break
            try:
                frames.append(self._render_frame(data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                # Some servers append data that is not JSON after the answer. The client has the answer by then.
                self.stream_failure = None if self.collector.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        """Renders the frame for one upstream event; empty if the client must not see the event."""
        collector = self.collector
        was_complete = collector.is_complete
        usage_before = collector.usage
        has_choice = collector.add_chunk(data)
        if collector.error is not None or name == ERROR_EVENT:
            # The HTTP status is already 200; 502 is what the failure would have been.
            self.stream_failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self.has_ended = True
            return b""
        # The gateway asks for usage in each stream. The client did not, so it must not get a chunk without choices.
        if not self._include_usage and collector.usage is not usage_before and not has_choice:
            return b""
        fields = self._fields
        if collector.is_complete and not was_complete:
            # `context` comes with the chunk that completes the answer: the searches of the model are known only then.
            self._last_chunk, fields = data, self._render_last_fields()
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        if self._templates_left and not was_complete and find_text(data):
            self._templates_left -= 1
            self._chunk_template = build_chunk_template(data, self._fields) or self._chunk_template
        if b"\n" in data:
            # Data of several lines is legal in server-sent events. Many clients parse line by line; outside of strings,
            # where it cannot occur, a line break in JSON equals a space.
            data = data.replace(b"\n", b" ")
        return b"data: " + splice_fields(data, fields) + b"\n\n"

    def render_correction_chunk(self, fields: bytes) -> bytes:
        """Renders a chunk without text that corrects our fields after the last chunk was sent; empty before that.

        Args:
            fields: our fields as they are now.
        """
        if self._last_chunk is None:
            return b""
        last_chunk = decode_chunk(self._last_chunk)
        identity = {name: last_chunk[name] for name in IDENTITY_FIELDS if name in last_chunk}
        data = encode_chunk({**identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        return b"data: " + splice_fields(data, fields) + b"\n\n"
