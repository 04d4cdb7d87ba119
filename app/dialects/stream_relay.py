"""What the relays of all protocols have in common: an event at a time, up to the first failure or the end. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from app.dialects.answer_decoding import BAD_GATEWAY, Answer
from app.dialects.sse import SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks


class StreamRelay:
    """Relays one stream. Attributes as of `answer_format.AnswerRelay`.

    Args:
        source: the deployment's key, for error messages.
    """

    answer: Answer

    def __init__(self, source: str) -> None:
        self.has_ended = self.is_upstream_done = False
        self.stream_failure: GatewayError | None = None
        self._source = source

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
