"""How a request's answer is written for its client. Each protocol that clients speak has one implementation.

A provider's reply comes untouched, with the decoder of its protocol. In the same protocol it passes, and the decoder
watches. In another one, what the decoder says (`answer_events`) is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_events import AnswerValue
from app.dialects.sse import SseEvent
from app.errors import GatewayError, UpstreamUnavailable

EventStyle = Literal["chunk", "named", "comment", "off"]
"""The form of a compaction's progress events."""


def render_progress_event(
    style: EventStyle, event: Mapping[str, Any], render_frame: Callable[[Mapping[str, Any]], bytes]
) -> bytes:
    """Renders the frame that keeps a client's connection alive, with an event of a compaction's progress.

    Args:
        style: `chunk`: strict SDKs accept an extra field of a frame. `named` and `comment`: an event of its own, for
            clients that read server-sent events themselves. `off`: no event, only the frame.
        render_frame: renders the frame with extra fields.
    """
    if style == "chunk":
        return render_frame({"context_event": dict(event)})
    frame = render_frame({})
    if style == "off":
        return frame
    form = b"event: %b\ndata: %b\n\n" if style == "named" else b": %b %b\n\n"
    return form % (event["type"].encode(), orjson.dumps(event)) + frame


class AnswerRelay(Protocol):
    """Turns the events of the upstream's stream into the client's frames. Does no I/O and never waits.

    Attributes:
        has_ended: the end of the stream or a failure has come; nothing more is relayed.
        is_upstream_done: the upstream has sent `[DONE]`, or data that cannot be part of an answer.
        stream_failure: why the answer is not whole; None while there is no failure.
    """

    has_ended: bool
    is_upstream_done: bool
    stream_failure: GatewayError | None

    @property
    def answer(self) -> Answer:
        """The answer, as far as it has come."""

    @property
    def answer_id(self) -> str | None:
        """The id of the answer in the client's frames."""

    def relay_events(self, events: Sequence[SseEvent]) -> bytes:
        """Renders the frames for events, up to the first failure or the end."""

    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        """Renders the frames for what the answer says, in the place of events. After that no event is relayed."""

    def render_heartbeat(self) -> bytes:
        """Renders a frame without content; empty if the answer has not begun or is complete."""

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Notes that no more bytes come, and that the answer is incomplete if its end is missing."""

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        """Renders the last frames, after the answer was stored.

        Args:
            changed_fields: all our fields, if they have changed since they were rendered; otherwise None.
        """

    def build_answer_message(self) -> Item:
        """Returns the answer as the log keeps it."""


class AnswerFormat(Protocol):
    """Writes one request's answer. `fields` are our own members of a JSON object, without braces."""

    protocol: str
    """The provider protocol whose events can pass to the client."""
    answer_id: str | None
    """The id that the gateway gives the answer; None if it has the provider's."""

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        """Returns an answer that is not streamed as the other methods take it: decoder and body in a protocol that they
        know.

        Args:
            answer: has read the body.
            body: the provider's reply.
        """

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        """Renders the body of an answer that is not streamed, after its message was built.

        Args:
            answer, body: as `translate_whole_answer` returned them.
            fields: all our fields.
        """

    def build_answer_message(self, answer: Answer) -> Item:
        """Returns a whole answer as the log keeps it."""

    def build_facts(self, answer: Answer) -> dict[str, Any]:
        """Returns the facts that are stored beside an answer. `render_stored_answer` reads them."""

    def build_relay(
        self,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        source: str,
    ) -> AnswerRelay:
        """Builds the relay of a stream.

        Args:
            answer: decodes the provider's events; none has come to it.
            fields: our status fields.
            render_last_fields: renders all our fields for the end of the answer, from the usage if it is known.
            include_usage: whether the client asked for usage.
            source: the deployment's key, for error messages.
        """

    def begin_progress(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        """Begins a stream before the upstream answers, because a compaction runs first.

        Args:
            completion_id, created, model: identify the answer; `created` in Unix seconds.
            style: the form of the progress events.
            fields: our status fields; they describe the view before the compaction.
        """

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        """Renders the first frames, with the event that a compaction has started."""

    def render_heartbeat(self) -> bytes:
        """Renders a frame without content, so that the client's read timeout does not expire: during a compaction, and
        while the provider pauses. Empty if there is nothing that it could belong to."""

    def render_progress_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        """Renders the frame with the outcome of the compaction.

        Args:
            fields: our status fields for the view after the compaction.
        """

    def render_error_frames(self, error: GatewayError) -> bytes:
        """Renders an error and the end of the stream, for a failure after the first byte."""

    def complete_frames(self, last_frame: bytes) -> bytes:
        """Returns what is missing of a stream's end after its last frame, if the answer is complete; usually
        nothing."""

    def render_stored_answer(
        self, entry: LogMessage, model: str, gateway_fields: Mapping[str, Any], context: Mapping[str, Any]
    ) -> bytes:
        """Renders a stored answer again, as a whole.

        Args:
            entry: the answer in the log.
            model: the name that the request has, used if the provider reported none.
            gateway_fields: `context_status` and `conversation_id`.
            context: our field `context`.
        """

    def render_stored_stream(
        self,
        entry: LogMessage,
        model: str,
        gateway_fields: Mapping[str, Any],
        context: Mapping[str, Any],
        *,
        include_usage: bool,
    ) -> Iterator[bytes]:
        """Renders a stored answer again, as the frames of a stream. Arguments as of `render_stored_answer`."""
