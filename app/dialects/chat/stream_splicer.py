"""Relays the upstream's stream to the client, and collects the answer for the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.conversation.item import Item
from app.dialects.answer_decoding import BAD_GATEWAY, AnswerDecoder, drop_cut_events
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import ChatStreamEncoder
from app.dialects.chat.stream_frames import (
    DONE_FRAME,
    ERROR_EVENT,
    CompactionProgressStream,
    decode_chunk,
    encode_chunk,
    splice_fields,
)
from app.dialects.sse import DONE_DATA, SseDecoder, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks

IDENTITY_FIELDS: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that are equal in all chunks of a stream."""


class ChatStreamSplicer:
    """Turns the bytes of the upstream's stream into the client's frames. Does no I/O and never waits.

    Each chunk of a chat provider passes: our fields are added at its end, and the usage that the client did not ask for
    is withheld. After the progress of a compaction, `IDENTITY_FIELDS` and the role are ours, too. What a provider of
    another protocol says is written as chunks first.

    Args:
        decoder: the decoder of the stream; it may hold the beginning of an event.
        fields: our fields for each chunk, as `splice_fields` takes them.
        render_last_fields: renders our fields for the chunk that completes the answer, from the usage if it is known.
        include_usage: whether the client asked for usage.
        progress_stream: renders the chunks if the stream began with the progress of a compaction; otherwise None.
        source: the deployment's key, for error messages.
        foreign_decoder: decodes the events of a provider of another protocol; None for a chat provider.

    Attributes:
        answer: the answer in the client's protocol, as far as it has come.
        has_ended: the end of the stream or a failure has come; nothing more is relayed.
        is_upstream_done: the upstream has sent `[DONE]`, or data that cannot be part of an answer.
        stream_failure: why the answer is not whole; None while there is no failure.
    """

    def __init__(
        self,
        decoder: SseDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        progress_stream: CompactionProgressStream | None,
        source: str,
        foreign_decoder: AnswerDecoder | None = None,
    ) -> None:
        self._decoder = decoder
        self._fields = fields
        self._render_last_fields = render_last_fields
        self._include_usage = include_usage
        self._progress_stream = progress_stream
        self._source = source
        self._last_chunk: bytes | None = None
        """The provider's chunk that completed the answer."""
        self._is_last_chunk_held = False
        """Whether that chunk waits for the provider's usage, which most providers send in the next event."""
        self.is_upstream_done = False
        self.has_ended = False
        self._foreign_decoder = foreign_decoder
        self._encoder = ChatStreamEncoder()
        self.answer = ChatStreamDecoder(source)
        self.stream_failure: GatewayError | None = None

    @property
    def answer_id(self) -> str | None:
        """The completion's id in the client's frames."""
        return self.answer.id if self._progress_stream is None else self._progress_stream.completion_id

    def feed(self, piece: bytes) -> bytes:
        """Renders the frames for the next bytes of the stream, without error events and `[DONE]`."""
        return self.relay_events(self._decoder.feed(piece))

    def flush(self) -> bytes:
        """Renders the frames for an event that the upstream's end cut off from its blank line."""
        return self.relay_events(drop_cut_events(self._decoder.flush(), self._foreign_decoder))

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Notes that no more bytes come, and that the answer is incomplete if its finish reason is missing.

        Args:
            stream_error: the error that broke the stream off; None if the upstream ended it.
        """
        if stream_error is not None:
            drop_tracebacks(stream_error)
        # A complete answer stands even if the connection broke afterwards: only `[DONE]` or the usage is missing.
        if self.stream_failure is None and not self.answer.is_complete:
            self.stream_failure = stream_error or UpstreamUnavailable(
                f"The stream of {self._source!r} ended before the answer was complete."
            )

    def relay_events(self, events: Sequence[SseEvent]) -> bytes:
        """Renders the frames for events, up to the first failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            # Comments and keep-alives have no data. They are for our connection, not for the client's.
            if not data:
                continue
            if data == DONE_DATA and self._foreign_decoder is None:
                self.is_upstream_done = self.has_ended = True
                frames.append(self._release_last_chunk())
                break
            try:
                if self._foreign_decoder is None:
                    frames.append(self._render_frame(data, event.name))
                else:
                    frames.append(self._render_foreign_event(self._foreign_decoder, data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                # Some servers append data that is not JSON after the answer. The client has the answer by then.
                self.stream_failure = None if self.answer.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _render_foreign_event(self, decoder: AnswerDecoder, data: bytes, name: bytes) -> bytes:
        """Renders the frames for one event of a provider of another protocol."""
        chunks = map(self._encoder.encode, decoder.decode(data, name))
        frames = b"".join([self._render_frame(chunk, b"") for chunk in chunks if chunk])
        if decoder.has_ended and not self.has_ended:
            self.is_upstream_done = self.has_ended = True
            frames += self._release_last_chunk()
        return frames

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        """Renders the frame for one upstream event; empty if the client must not see the event."""
        answer = self.answer
        was_complete = answer.is_complete
        usage_before = answer.usage
        has_choice = answer.add_chunk(data)
        if answer.error is not None or name == ERROR_EVENT:
            # The HTTP status is already 200; 502 is what the failure would have been.
            self.stream_failure = UpstreamRefused(BAD_GATEWAY, answer.error_data or data, {})
            self.has_ended = True
            return self._release_last_chunk()
        held_frame = self._release_last_chunk()
        # The gateway asks for usage in each stream. The client did not, so it must not get a chunk without choices.
        if not self._include_usage and answer.usage is not usage_before and not has_choice:
            return held_frame
        if answer.is_complete and not was_complete:
            # `context` comes with the chunk that completes the answer: only then the searches of the model are known,
            # and with the usage, the provider's count of the prompt.
            self._last_chunk, self._is_last_chunk_held = data, True
            return held_frame + (b"" if answer.usage is None else self._release_last_chunk())
        return held_frame + self._render_chunk(data, self._fields)

    def _release_last_chunk(self) -> bytes:
        """Renders the chunk that completed the answer, with all our fields, if it is still held."""
        if not self._is_last_chunk_held or self._last_chunk is None:
            return b""
        self._is_last_chunk_held = False
        return self._render_chunk(self._last_chunk, self._render_last_fields(self.answer.usage))

    def _render_chunk(self, data: bytes, fields: bytes) -> bytes:
        """Renders the client's frame of an upstream chunk."""
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        if b"\n" in data:
            # Data of several lines is legal in server-sent events. Many clients parse line by line; outside of strings,
            # where it cannot occur, a line break in JSON equals a space.
            data = data.replace(b"\n", b" ")
        return b"data: " + splice_fields(data, fields) + b"\n\n"

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the end of the stream: before it, if our fields have changed, a chunk that corrects them."""
        correction = b"" if changed_fields is None else self._render_correction_chunk(changed_fields)
        return self._release_last_chunk() + correction + DONE_FRAME

    def build_answer_message(self) -> Item:
        """Returns the message of choice 0, as the log keeps it."""
        return ChatMessage.from_body(self.answer.build_message())

    def _render_correction_chunk(self, fields: bytes) -> bytes:
        """Renders a chunk without text that corrects our fields after the last chunk was sent; empty before that."""
        if self._last_chunk is None:
            return b""
        last_chunk = decode_chunk(self._last_chunk)
        identity = {name: last_chunk[name] for name in IDENTITY_FIELDS if name in last_chunk}
        data = encode_chunk({**identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        return b"data: " + splice_fields(data, fields) + b"\n\n"
