"""What the relays of all protocols have in common: an event at a time, up to the first failure or the end. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from app.conversation.item import Item
from app.dialects.answer_decoding import BAD_GATEWAY, Answer
from app.dialects.answer_events import AnswerValue
from app.dialects.sse import SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks


class RelayOptions(msgspec.Struct, frozen=True):
    """What the relay of a stream is told beside the answer."""

    fields: bytes
    """Our status fields, as members of a JSON object, without braces."""
    render_last_fields: Callable[[Mapping[str, Any] | None], bytes]
    """Renders all our fields for the end of the answer, from the usage if it is known."""
    source: str
    """The deployment's key, for error messages."""
    include_usage: bool = False
    """Whether the client asked for usage."""


class StreamRelay(ABC):
    """Turns the events of the upstream's stream into the client's frames. Does no I/O and never waits.

    Attributes:
        answer: the answer, as far as it has come.
        has_ended: the end of the stream or a failure has come; nothing more is relayed.
        is_upstream_done: the upstream has said its last, or data that cannot be part of an answer.
        stream_failure: why the answer is not whole; None while there is no failure.
    """

    def __init__(self, answer: Answer, options: RelayOptions) -> None:
        self.answer = answer
        self.has_ended = self.is_upstream_done = False
        self.stream_failure: GatewayError | None = None
        self._fields = options.fields
        self._render_last_fields = options.render_last_fields
        self._source = options.source

    @property
    @abstractmethod
    def answer_id(self) -> str | None:
        """The id of the answer in the client's frames."""

    def relay_events(self, events: Sequence[SseEvent]) -> bytes:
        """Renders the frames for events, up to the first failure or the end."""
        frames, relay_event = [], self._relay_event
        for event in events:
            data = event.data.strip() if event.data else b""
            # Comments and keep-alives have no data. They are for our connection, not for the client's.
            if not data:
                continue
            try:
                frames.append(relay_event(data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                # Some servers append data that is not JSON after the answer. The client has the answer by then.
                self.stream_failure = None if self.answer.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    @abstractmethod
    def _relay_event(self, data: bytes, name: bytes) -> bytes:
        """Renders the frames for one event, and notes the end and failures.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """

    @abstractmethod
    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        """Renders the frames for what the answer says, in the place of events. After that no event is relayed."""

    @abstractmethod
    def render_heartbeat(self) -> bytes:
        """Renders a frame without content; empty if the answer has not begun or is complete."""

    @abstractmethod
    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the last frames, after the answer was stored.

        Args:
            changed_fields: all our fields, if they have changed since they were rendered; otherwise None.
        """

    @abstractmethod
    def build_answer_message(self) -> Item:
        """Returns the answer as the log keeps it."""

    def _fail(self, error_data: bytes) -> None:
        """Ends the stream because the provider has sent an error. The HTTP status is already 200; 502 is what the
        failure would have been."""
        self.stream_failure, self.has_ended = UpstreamRefused(BAD_GATEWAY, error_data, {}), True

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Notes that no more bytes come, and that the answer is incomplete if its end is missing.

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
