"""Relays the upstream's stream to the client, and collects the answer for the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.conversation.item import Item
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue, Begin, Failure
from app.dialects.answer_format import Progress
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import ChatStreamEncoder
from app.dialects.chat.stream_frames import (
    DONE_FRAME,
    ERROR_EVENT,
    build_progress_identity,
    render_progress_chunk,
    splice_fields,
)
from app.dialects.messages.message import find_message_with_thinking
from app.dialects.provider_json import decode_object, encode_json
from app.dialects.sse import DONE_DATA
from app.dialects.stream_relay import RelayOptions, StreamRelay

SPLICED_FIELDS: Final = frozenset({("context_status",), ("conversation_id",), ("context",)})
"""The fields of a chunk that change between a provider and a client of Chat Completions: ours. Besides, chunks with
nothing but usage are withheld from a client that did not ask for it; after the progress of a compaction the
`IDENTITY_FIELDS` and the role are ours, too."""
IDENTITY_FIELDS: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that are equal in all chunks of a stream."""


class ChatStreamSplicer(StreamRelay):
    """Turns the bytes of the upstream's stream into the client's frames. Does no I/O and never waits.

    Each chunk of a chat provider passes: our fields are added at its end, and the usage that the client did not ask for
    is withheld. After the progress of a compaction, `IDENTITY_FIELDS` and the role are ours, too. What a provider of
    another protocol says is written as chunks first.

    Args:
        progress: if the stream began with the progress of a compaction; otherwise None.
        foreign_decoder: decodes the events of a provider of another protocol; None for a chat provider.

    Attributes:
        answer: the answer in the client's protocol, as far as it has come.
    """

    answer: ChatStreamDecoder

    def __init__(
        self, options: RelayOptions, progress: Progress | None = None, foreign_decoder: AnswerDecoder | None = None
    ) -> None:
        super().__init__(ChatStreamDecoder(options.source), options)
        self._include_usage = options.include_usage
        self._progress = progress
        self._first_chunk: bytes | None = None
        self._last_chunk: bytes | None = None
        """The provider's chunk that completed the answer."""
        self._is_last_chunk_held = False
        """Whether that chunk waits for the provider's usage, which most providers send in the next event."""
        self._foreign_decoder = foreign_decoder
        self._encoder = ChatStreamEncoder(None if progress is None else build_progress_identity(progress))

    @property
    def answer_id(self) -> str | None:
        """The completion's id in the client's frames."""
        return self.answer.id if self._progress is None else self._progress.completion_id

    def _relay_event(self, data: bytes, name: bytes) -> bytes:
        decoder = self._foreign_decoder
        if decoder is None and data != DONE_DATA:
            return self._render_frame(data, name)
        frames = b"" if decoder is None else self.relay_values(decoder.decode(data, name))
        if (decoder is None or decoder.has_ended) and not self.has_ended:
            self.is_upstream_done = self.has_ended = True
            frames += self._release_last_chunk()
        return frames

    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        """Renders the frames for what the answer says, in the place of events."""
        if not self._encoder.has_begun:
            self._encoder.continue_after(self.answer)
        frames = []
        for value in values:
            if chunk := self._encoder.encode(value):
                frames.append(self._render_frame(chunk, ERROR_EVENT if isinstance(value, Failure) else b""))
            if isinstance(value, Begin):  # the chunks have the model's name of the request
                self.answer.model = value.model or self.answer.model
        return b"".join(frames)

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        """Renders the frame for one upstream event; empty if the client must not see the event."""
        answer = self.answer
        if self._first_chunk is None:
            self._first_chunk = data
        was_complete = answer.is_complete
        usage_before = answer.usage
        has_choice = answer.add_chunk(data)
        if answer.error_data is not None or name == ERROR_EVENT:
            self._fail(answer.error_data or data)
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

    def render_heartbeat(self) -> bytes:
        if self._first_chunk is None or self.has_ended or self.answer.is_complete:
            return b""
        if self._progress is not None:
            return render_progress_chunk(self._progress, {})
        return self._render_empty_chunk(self._first_chunk, {"content": ""}, self._fields)

    def _release_last_chunk(self) -> bytes:
        """Renders the chunk that completed the answer, with all our fields, if it is still held."""
        if not self._is_last_chunk_held or self._last_chunk is None:
            return b""
        self._is_last_chunk_held = False
        return self._render_chunk(self._last_chunk, self._render_last_fields(self.answer.usage))

    def _render_chunk(self, data: bytes, fields: bytes) -> bytes:
        """Renders the client's frame of an upstream chunk."""
        if b"\n" in data:
            # Data of several lines is legal in server-sent events. Many clients parse line by line; outside of strings,
            # where it cannot occur, a line break in JSON equals a space.
            data = data.replace(b"\n", b" ")
        return b"data: " + splice_fields(data, fields) + b"\n\n"

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the end of the stream: before it, if our fields have changed, a chunk that corrects them."""
        frames = self._release_last_chunk()
        if changed_fields is not None and self._last_chunk is not None:
            frames += self._render_empty_chunk(self._last_chunk, {}, changed_fields)
        return frames + DONE_FRAME

    def build_answer_message(self) -> Item:
        """Returns the message of choice 0, as the log keeps it."""
        log_message = None if self._foreign_decoder is None else find_message_with_thinking(self._foreign_decoder)
        return log_message or self.answer.build_item()

    def _render_empty_chunk(self, other: bytes, delta: Mapping[str, str], fields: bytes) -> bytes:
        """Renders a chunk without text that belongs to the completion of another chunk."""
        members = decode_object(other)
        identity = {name: members[name] for name in IDENTITY_FIELDS if name in members}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return self._render_chunk(encode_json({**identity, "choices": [choice]}), fields)
