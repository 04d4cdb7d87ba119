"""How a request's answer is written for its client. Each protocol that clients speak has one subclass.

A provider's reply comes untouched, with the decoder of its protocol. In the same protocol it passes, and the decoder
watches. In another one, what the decoder says (`answer_events`) is written.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.errors import GatewayError

EventStyle = Literal["chunk", "named", "comment", "off"]
"""The form of a compaction's progress events."""


class Progress(msgspec.Struct):
    """A stream that begins before the upstream answers, because a compaction runs first.

    All of its frames belong to one answer, which `completion_id`, `created` (Unix seconds) and `model` identify.
    """

    completion_id: str = ""
    created: int = 0
    model: str = ""
    style: EventStyle = "off"
    fields: bytes = b""
    """Our status fields, for the view before the compaction or, in the end, for the view after it."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer of the log that is written again."""

    entry: LogMessage
    """The answer; its facts are those of `AnswerFormat.build_facts`."""
    model: str
    """The name that the request has, used if the provider reported none."""
    gateway_fields: Mapping[str, Any]
    """`context_status` and `conversation_id`."""
    context: Mapping[str, Any]
    """Our field `context`."""
    include_usage: bool = False
    """Whether the client of a stream asked for usage."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.entry.meta or {}

    @property
    def model_name(self) -> str:
        return self.facts.get("model") or self.model

    @property
    def all_fields(self) -> dict[str, Any]:
        return {**self.gateway_fields, "context": self.context}


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


class NewCompaction(msgspec.Struct, frozen=True):
    """A compaction that a request has brought about, for a client that keeps it."""

    capsule: str
    summary: str
    """What the compaction says, readable."""
    usage: Mapping[str, Any]
    """What the calls for the summaries used, as Chat Completions have it."""
    said: Sequence[bytes]
    """The system, developer and user messages of the range, as their clients sent them."""


class CapsuleFormat(Protocol):
    """Writes the compactions of an answer, for clients that keep them as capsules (`compaction.capsule`)."""

    def render_compaction_begin(self) -> bytes:
        """Renders the frames that say that a compaction is being made, in a stream that has begun."""

    def add_compaction(self, compaction: NewCompaction) -> bytes:
        """Makes a compaction the first part of the answer. Returns its frames if the stream has begun."""

    def render_whole_compaction(self, compaction: NewCompaction, fields: bytes) -> bytes:
        """Renders an answer that is nothing but a compaction.

        Args:
            fields: our own members of the answer, without braces.
        """

    def render_compaction_end(self, compaction: NewCompaction, fields: bytes) -> bytes:
        """Renders the last frames of a stream that is nothing but a compaction. Arguments as of
        `render_whole_compaction`."""


class AnswerFormat(ABC):
    """Writes one request's answer. `fields` are our own members of a JSON object, without braces.

    Attributes:
        protocol: the provider protocol whose events can pass to the client.
        answer_id: the id that the gateway gives the answer; None if it has the provider's.
    """

    protocol: str

    def __init__(self, answer_id: str | None = None) -> None:
        self.answer_id = answer_id
        # Weak, since the relay may lead back here: a reference cycle would hold the request after its end.
        self._find_relay: Callable[[], StreamRelay | None] = lambda: None
        self._progress = Progress()

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        """Returns an answer that is not streamed as the other methods take it: decoder and body in a protocol that they
        know.

        Args:
            answer: has read the body.
            body: the provider's reply.
        """
        return answer, body

    @abstractmethod
    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        """Renders the body of an answer that is not streamed, after its message was built.

        Args:
            answer, body: as `translate_whole_answer` returned them.
            fields: all our fields.
        """

    @abstractmethod
    def build_answer_message(self, answer: Answer) -> Item:
        """Returns a whole answer as the log keeps it."""

    def build_facts(self, answer: Answer) -> dict[str, Any]:
        """Returns the facts that are stored beside an answer. `render_stored_answer` reads them."""
        return answer.build_facts()

    def build_relay(self, answer: AnswerDecoder, options: RelayOptions) -> StreamRelay:
        """Builds the relay of a stream.

        Args:
            answer: decodes the provider's events; none has come to it.
        """
        relay = self._make_relay(answer, options)
        self._find_relay = weakref.ref(relay)
        return relay

    @abstractmethod
    def _make_relay(self, answer: AnswerDecoder, options: RelayOptions) -> StreamRelay:
        """Makes the relay of a stream; as of `build_relay`."""

    def begin_progress(self, progress: Progress) -> None:
        """Begins a stream before the upstream answers."""
        self._progress = progress

    @abstractmethod
    def _render_progress(self, extra: Mapping[str, Any]) -> bytes:
        """Renders a frame without content.

        Args:
            extra: further fields of the frame.
        """

    def _render_progress_begin(self) -> bytes:
        """Renders the frames before the first one."""
        return b""

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        """Renders the first frames, with the event that a compaction has started."""
        return self._render_progress_begin() + render_progress_event(self._progress.style, event, self._render_progress)

    def render_heartbeat(self) -> bytes:
        """Renders a frame without content, so that the client's read timeout does not expire: during a compaction, and
        while the provider pauses. Empty if there is nothing that it could belong to."""
        relay = self._find_relay()
        return self._render_progress({}) if relay is None else relay.render_heartbeat()

    def render_progress_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        """Renders the frame with the outcome of the compaction.

        Args:
            fields: our status fields for the view after the compaction.
        """
        self._progress.fields = fields
        return render_progress_event(self._progress.style, event, self._render_progress)

    @abstractmethod
    def render_error_frames(self, error: GatewayError) -> bytes:
        """Renders an error and the end of the stream, for a failure after the first byte."""

    @abstractmethod
    def render_stored_answer(self, stored: StoredAnswer) -> bytes:
        """Renders a stored answer again, as a whole."""

    @abstractmethod
    def render_stored_stream(self, stored: StoredAnswer) -> Iterator[bytes]:
        """Renders a stored answer again, as the frames of a stream."""
