"""Writes answers for clients of the Messages API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_events import AnswerValue
from app.dialects.answer_format import AnswerFormat, NewCompaction, StoredAnswer
from app.dialects.assembled_answer import AssembledAnswer
from app.dialects.chat.stream_frames import splice_fields
from app.dialects.messages.compaction import COMPACTION_TYPE, AddedCompaction
from app.dialects.messages.errors import build_error_body
from app.dialects.messages.message import MessagesMessage
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
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.errors import GatewayError


class MessagesAnswerFormat(AnswerFormat):
    """Writes one message: as an object, or as a stream of events.

    Args:
        request_id: names the message if its provider speaks another protocol, and stands in errors.
        model: the name that the request has.
        signs_compaction: whether the client asked for a compaction and for no answer.
    """

    protocol = MessagesStreamDecoder.protocol
    _find_relay: Callable[[], MessagesStreamRelay | None]

    def __init__(self, request_id: str, model: str = "", *, signs_compaction: bool = False) -> None:
        super().__init__()
        self._request_id = request_id
        self._model = model
        self._signs_compaction = signs_compaction
        self._compaction = AddedCompaction()
        self._encoder = MessagesStreamEncoder(self._own_id)

    @property
    def _own_id(self) -> str:
        return f"msg_{self._request_id.removeprefix('req_')}"

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        if answer.protocol != MessagesStreamDecoder.protocol or self._compaction.blocks:
            self.answer_id = self._own_id
            self._encoder.blocks += self._compaction.blocks
            self._encoder.encode(answer.decode_whole(body))
            self._encoder.write_end()
        return answer, body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        if self.answer_id is None:
            return splice_fields(body, fields)
        message = build_message_object(
            self.answer_id, answer.model, self._encoder.blocks, finish=answer.finish, usage=answer.usage
        )
        message["usage"] = self._compaction.add_to_usage(message["usage"])
        return splice_fields(orjson.dumps(message), fields)

    def build_answer_message(self, answer: Answer) -> Item:
        return build_log_message(answer, self._encoder, self._compaction)

    def _make_relay(self, answer: AnswerDecoder, options: RelayOptions) -> MessagesStreamRelay:
        is_passed = answer.protocol == MessagesStreamDecoder.protocol and not self._compaction.blocks
        self.answer_id = None if is_passed else self._own_id
        return MessagesStreamRelay(answer, options, self.answer_id, self._compaction)

    def render_compaction_begin(self) -> bytes:
        # A message begins with what it is about, and this is not known yet.
        return b""

    def add_compaction(self, compaction: NewCompaction) -> bytes:
        self._compaction.set(compaction, is_signed=self._signs_compaction)
        return b""

    def render_whole_compaction(self, compaction: NewCompaction, fields: bytes) -> bytes:
        self.add_compaction(compaction)
        return splice_fields(orjson.dumps(self._build_compaction_message()), fields)

    def render_compaction_end(self, compaction: NewCompaction, fields: bytes) -> bytes:
        self.add_compaction(compaction)
        message = self._build_compaction_message()
        return b"".join(write_whole_message(message, {}, orjson.loads(b"{" + fields + b"}")))

    def _build_compaction_message(self) -> dict[str, Any]:
        """Builds a message that is nothing but a compaction."""
        message = build_message_object(self._own_id, self._model, self._compaction.blocks)
        usage = self._compaction.add_to_usage(message["usage"], has_answer=False)
        return {**message, "stop_reason": COMPACTION_TYPE, "usage": usage}

    def _render_progress(self, extra: Mapping[str, Any]) -> bytes:
        # The official clients skip a `ping` before the message begins, and events with names that they do not know.
        return write_event("ping", extra)

    def render_error_frames(self, error: GatewayError) -> bytes:
        # Several clients may wait for one answer. All get the same end.
        relay = self._find_relay()
        if relay is not None and relay.end is not None:
            return relay.end
        end = write_data(b"error", build_error_body(error, self._request_id))
        if relay is not None:
            relay.end = end
        return end

    def render_stored_answer(self, stored: StoredAnswer) -> bytes:
        return orjson.dumps({**self._build_stored_message(stored), **stored.all_fields})

    def render_stored_stream(self, stored: StoredAnswer) -> Iterator[bytes]:
        return write_whole_message(self._build_stored_message(stored), stored.gateway_fields, stored.all_fields)

    def _build_stored_message(self, stored: StoredAnswer) -> dict[str, Any]:
        facts = stored.facts
        return build_message_object(
            str(facts.get("id") or self._own_id),
            stored.model_name,
            list_answer_blocks(stored.entry.message),
            finish=facts.get("finish_reason") or "stop",
            usage=facts.get("usage"),
            native=facts.get(NATIVE_FACTS_KEY),
        )


class MessagesStreamRelay(StreamRelay):
    """Turns the events of the upstream's stream into the events of a message.

    Args:
        answer: decodes the events: those of a provider of the same protocol pass while it watches, those of another are
            written from the values that it makes.
        own_id: the id of the message; None if it has the provider's, and the provider's events pass.
        compaction: what the message begins with.

    Attributes:
        end: the frames that end the stream; None until they are written.
    """

    def __init__(
        self, answer: AnswerDecoder, options: RelayOptions, own_id: str | None, compaction: AddedCompaction
    ) -> None:
        super().__init__(answer, options)
        self.end: bytes | None = None
        self._decoder = answer
        self._own_id = own_id
        self._compaction = compaction
        self._encoder = MessagesStreamEncoder(own_id or "")
        self._encoder.blocks += compaction.blocks
        self._has_begun = False
        self._passed_count = 0
        """How many blocks of the provider have passed."""
        self._last_delta: bytes | None = None
        """The data of the provider's `message_delta`: the answer is stored first."""
        self._stop_frame = write_event("message_stop", {})

    @property
    def answer_id(self) -> str | None:
        return self._own_id or self.answer.id

    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        if not isinstance(self.answer, AssembledAnswer):
            decoder, self.answer = self.answer, AssembledAnswer()
            self.answer.id, self.answer.model = decoder.id, decoder.model
            self.answer.has_content = decoder.has_content
            if isinstance(decoder, MessagesStreamDecoder) and self._own_id is None:
                self._encoder.blocks += decoder.list_blocks(self._passed_count)
        self.answer.add(values)
        if self.answer.error_data is not None:
            self._fail(self.answer.error_data)
        return (self._write_begin() if values else b"") + self._encoder.encode(values)

    def build_answer_message(self) -> Item:
        return build_log_message(self.answer, self._encoder, self._compaction)

    def render_heartbeat(self) -> bytes:
        can_wait = self._has_begun and not self.answer.is_complete and self.end is None
        return write_event("ping", {}) if can_wait else b""

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        answer = self.answer
        fields = self._render_last_fields(answer.usage) if changed_fields is None else changed_fields
        ended, frames = self._last_delta, b""
        if ended is None:
            frames = self._write_begin() + self._encoder.encode(answer.decode_rest()) + self._encoder.write_end()
            delta = {"stop_reason": choose_stop_reason(answer.finish or "stop"), "stop_sequence": None}
            usage = self._compaction.add_to_usage(build_usage(answer.usage))
            ended = orjson.dumps({"type": "message_delta", "delta": delta, "usage": usage})
        self.end = frames + write_data(b"message_delta", splice_fields(ended, fields)) + self._stop_frame
        return self.end

    def _relay_event(self, data: bytes, name: bytes) -> bytes:
        decoder = self._decoder
        if isinstance(decoder, MessagesStreamDecoder) and self._own_id is None:
            frames = self._splice_event(decoder, data, name)
        else:
            values = decoder.decode(data, name)
            frames = b""
            if decoder.error_data is None:
                frames = (self._write_begin() if values else b"") + self._encoder.encode(values)
        if decoder.error_data is not None:
            self._fail(decoder.error_data)
        elif decoder.has_ended:
            self.is_upstream_done = self.has_ended = True
        return frames

    def _splice_event(self, decoder: MessagesStreamDecoder, data: bytes, name: bytes) -> bytes:
        """Renders the frame for an event of the same protocol. Only `message_start` and `message_delta` get our fields:
        in `message`, and beside `delta`."""
        kind = decoder.watch(data, name).type
        if kind == "message_stop":
            self._stop_frame = write_data(b"message_stop", data)
        if kind in ("error", "message_stop"):
            return b""
        if kind == "message_start":
            self._has_begun = True
            return write_data(b"message_start", splice_message(data, self._fields))
        if kind == "message_delta" and decoder.is_complete:
            held, self._last_delta = self._last_delta, data
            return b"" if held is None else write_data(b"message_delta", held)
        self._passed_count += kind == "content_block_start"
        return write_data(name or kind.encode(), data)

    def _write_begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = build_message_object(self.answer_id or "", self.answer.model)
        begin = write_event("message_start", {"message": {**message, **orjson.loads(b"{" + self._fields + b"}")}})
        return begin + b"".join(write_whole_block(index, block) for index, block in enumerate(self._compaction.blocks))


def write_whole_message(
    message: Mapping[str, Any], first_fields: Mapping[str, Any], last_fields: Mapping[str, Any]
) -> Iterator[bytes]:
    """Writes the frames of a message that is whole.

    Args:
        first_fields, last_fields: our own fields at its beginning and at its end.
    """
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, **first_fields}
    yield write_event("message_start", {"message": begun})
    for index, block in enumerate(message["content"]):
        yield write_whole_block(index, block)
    delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    ended = {"delta": delta, "usage": message["usage"], **last_fields}
    yield write_event("message_delta", ended) + write_event("message_stop", {})


def build_log_message(answer: Answer, encoder: MessagesStreamEncoder, compaction: AddedCompaction) -> Item:
    """Returns an answer as the log keeps it: in the form of the provider's protocol, or, if it was joined from several,
    as the client got it.

    Args:
        encoder: has written the answer for the client.
        compaction: what the client's message begins with, and the log's does not.
    """
    if isinstance(answer, AssembledAnswer):
        blocks = encoder.blocks[len(compaction.blocks) :]
        return MessagesMessage.from_raw_blocks("assistant", list(map(orjson.dumps, blocks)))
    return answer.build_item()
