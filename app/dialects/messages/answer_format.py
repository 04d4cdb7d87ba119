"""Writes answers for clients of the Messages API."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import BAD_GATEWAY, AnswerDecoder, drop_cut_events
from app.dialects.answer_format import EventStyle
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_frames import splice_fields
from app.dialects.messages.errors import build_error_body
from app.dialects.messages.message_rendering import list_answer_blocks
from app.dialects.messages.stream_decoder import NATIVE_FACTS_KEY, MessagesStreamDecoder
from app.dialects.messages.stream_encoder import (
    MessagesStreamEncoder,
    build_message_object,
    build_usage,
    choose_stop_reason,
    splice_message,
    write_data,
    write_event,
    write_whole_block,
)
from app.dialects.responses.answer_message import build_items_message
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks

SPLICED_EVENTS = ("message_start", "message_delta")
"""Events of a provider of the same protocol that get our fields: in `message`, and beside `delta`. All others pass."""


class MessagesAnswerFormat:
    """Writes one message: as an object, or as a stream of events.

    Args:
        request_id: names the message if its provider speaks another protocol, and stands in errors.
    """

    __slots__ = ("__weakref__", "_encoder", "_end", "_find_relay", "_request_id", "_style", "answer_id")

    answer_id: str | None

    def __init__(self, request_id: str) -> None:
        self.answer_id = None
        self._request_id = request_id
        self._encoder = MessagesStreamEncoder(self._own_id)
        # Weak, since the relay leads back here: a reference cycle would hold the request after its end.
        self._find_relay: Callable[[], MessagesStreamRelay | None] = lambda: None
        self._style: EventStyle = "off"

    @property
    def _own_id(self) -> str:
        return f"msg_{self._request_id.removeprefix('req_')}"

    def translate_whole_answer(self, answer: AnswerDecoder, body: bytes) -> tuple[AnswerDecoder, bytes]:
        if answer.protocol != MessagesStreamDecoder.protocol:
            self.answer_id = self._own_id
            self._encoder.encode(answer.decode_whole(body))
            self._encoder.write_end()
        return answer, body

    def render_whole_answer(self, answer: AnswerDecoder, body: bytes, fields: bytes) -> bytes:
        if self.answer_id is None:
            return splice_fields(body, fields)
        message = build_message_object(
            self.answer_id, answer.model, self._encoder.blocks, finish=answer.finish, usage=answer.usage
        )
        return splice_fields(orjson.dumps(message), fields)

    def build_answer_message(self, answer: AnswerDecoder) -> Item:
        return build_log_message(answer)

    def build_facts(self, answer: AnswerDecoder) -> dict[str, Any]:
        return {**answer.build_facts()}

    def build_relay(
        self,
        sse_decoder: SseDecoder,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        source: str,
    ) -> MessagesStreamRelay:
        is_own = answer.protocol == MessagesStreamDecoder.protocol
        self.answer_id = None if is_own else self._own_id
        relay = MessagesStreamRelay(
            sse_decoder, answer, fields, render_last_fields, source=source, own_id=self.answer_id
        )
        self._find_relay = weakref.ref(relay)
        return relay

    def begin_progress(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        self._style = style

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        return self._render_progress(event)

    def render_heartbeat(self) -> bytes:
        return write_event("ping", {})

    def render_progress_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        return self._render_progress(event)

    def render_error_frames(self, error: GatewayError) -> bytes:
        # Several clients may wait for one answer. All get the same end.
        relay = self._find_relay()
        if relay is not None and relay.end is not None:
            return relay.end
        end = write_data(b"error", build_error_body(error, self._request_id))
        if relay is not None:
            relay.end = end
        return end

    def complete_frames(self, last_frame: bytes) -> bytes:
        relay = self._find_relay()
        if relay is None:
            return b""
        end = relay.render_end() if relay.end is None else relay.end
        return b"" if last_frame.endswith(end) else end

    def render_stored_answer(
        self, entry: LogMessage, model: str, gateway_fields: Mapping[str, Any], context: Mapping[str, Any]
    ) -> bytes:
        return orjson.dumps({**self._build_stored_message(entry, model), **gateway_fields, "context": context})

    def render_stored_stream(
        self,
        entry: LogMessage,
        model: str,
        gateway_fields: Mapping[str, Any],
        context: Mapping[str, Any],
        *,
        include_usage: bool,
    ) -> Iterator[bytes]:
        message = self._build_stored_message(entry, model)
        begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, **gateway_fields}
        yield write_event("message_start", {"message": begun})
        for index, block in enumerate(message["content"]):
            yield write_whole_block(index, block)
        delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        ended = {"delta": delta, "usage": message["usage"], **gateway_fields, "context": context}
        yield write_event("message_delta", ended) + write_event("message_stop", {})

    def _build_stored_message(self, entry: LogMessage, model: str) -> dict[str, Any]:
        facts = entry.meta or {}
        return build_message_object(
            str(facts.get("id") or self._own_id),
            facts.get("model") or model,
            list_answer_blocks(entry.message),
            finish=facts.get("finish_reason") or "stop",
            usage=facts.get("usage"),
            native=facts.get(NATIVE_FACTS_KEY),
        )

    def _render_progress(self, event: Mapping[str, Any]) -> bytes:
        # The official clients skip a `ping` before the message begins, and events with names that they do not know.
        if self._style == "chunk":
            return write_event("ping", {"context_event": dict(event)})
        frame = write_event("ping", {})
        if self._style == "named":
            return write_data(event["type"].encode(), orjson.dumps(event)) + frame
        if self._style == "comment":
            return b": %b %b\n\n" % (event["type"].encode(), orjson.dumps(event)) + frame
        return frame


class MessagesStreamRelay:
    """Turns the bytes of the upstream's stream into the events of a message. Implements
    `dialects.answer_format.AnswerRelay`.

    Args:
        sse_decoder: cuts the stream into events; it may hold the beginning of one.
        answer: decodes the events: those of a provider of the same protocol pass while it watches, those of another are
            written from the values that it makes.
        fields, render_last_fields, source: as of `ChatStreamSplicer`.
        own_id: the id of the message; None if it has the provider's, which speaks the same protocol.

    Attributes:
        end: the frames that end the stream; None until they are written.
    """

    def __init__(
        self,
        sse_decoder: SseDecoder,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        source: str,
        own_id: str | None,
    ) -> None:
        self.answer = answer
        self.has_ended = self.is_upstream_done = False
        self.stream_failure: GatewayError | None = None
        self.end: bytes | None = None
        self._sse_decoder = sse_decoder
        self._fields = fields
        self._render_last_fields = render_last_fields
        self._source = source
        self._own_id = own_id
        self._encoder = MessagesStreamEncoder(own_id or "")
        self._has_begun = False
        self._last_delta: bytes | None = None
        """The data of the provider's `message_delta`: the answer is stored first."""
        self._stop_frame = write_event("message_stop", {})

    @property
    def answer_id(self) -> str | None:
        return self._own_id or self.answer.id

    def feed(self, piece: bytes) -> bytes:
        return self.relay_events(self._sse_decoder.feed(piece))

    def flush(self) -> bytes:
        return self.relay_events(drop_cut_events(self._sse_decoder.flush(), self.answer))

    def relay_events(self, events: Sequence[SseEvent]) -> bytes:
        frames = []
        answer = self.answer
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data:
                continue
            try:
                frames.append(self._relay_event(event, data))
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
        return build_log_message(self.answer)

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        answer = self.answer
        fields = self._render_last_fields(answer.usage) if changed_fields is None else changed_fields
        if self._last_delta is not None:
            frames = write_data(b"message_delta", splice_fields(self._last_delta, fields))
        else:
            frames = self._write_begin() + self._encoder.encode(answer.decode_rest()) + self._encoder.write_end()
            delta = {"stop_reason": choose_stop_reason(answer.finish or "stop"), "stop_sequence": None}
            ended = orjson.dumps({"type": "message_delta", "delta": delta, "usage": build_usage(answer.usage)})
            frames += write_data(b"message_delta", splice_fields(ended, fields))
        self.end = frames + self._stop_frame
        return self.end

    def _relay_event(self, event: SseEvent, data: bytes) -> bytes:
        if not isinstance(self.answer, MessagesStreamDecoder):
            values = self.answer.decode(data, event.name)
            if self.answer.error_data is not None:
                return b""
            begin = self._write_begin() if values else b""
            return begin + self._encoder.encode(values)
        kind = self.answer.watch(data, event.name).type
        if kind == "error":
            return b""
        if kind == "message_start":
            self._has_begun = True
            return write_data(b"message_start", splice_message(data, self._fields))
        if kind == "message_delta" and self.answer.is_complete:
            held, self._last_delta = self._last_delta, data
            return b"" if held is None else write_data(b"message_delta", held)
        is_whole = event.raw.endswith((b"\n\n", b"\r\n\r\n"))
        frame = event.raw if is_whole else write_data(event.name or kind.encode(), data)
        if kind == "message_stop":
            self._stop_frame = frame
            return b""
        return frame

    def _write_begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = build_message_object(self._own_id or self.answer.id or "", self.answer.model)
        return write_event("message_start", {"message": {**message, **orjson.loads(b"{" + self._fields + b"}")}})


def build_log_message(answer: AnswerDecoder) -> Item:
    """Returns an answer as the log keeps it: in the form of the provider's protocol."""
    if isinstance(answer, MessagesStreamDecoder):
        return answer.build_message()
    if isinstance(answer, ResponsesStreamDecoder):
        return build_items_message(answer.list_items())
    assert isinstance(answer, ChatStreamDecoder)
    return ChatMessage.from_body(answer.build_message())
