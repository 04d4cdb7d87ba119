"""Writes answers for clients of Chat Completions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_format import EventStyle
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stored_answer import build_stored_completion, render_stored_stream
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import encode_completion
from app.dialects.chat.stream_frames import DONE_FRAME, CompactionProgressStream, render_error_frames, splice_fields
from app.dialects.chat.stream_splicer import ChatStreamSplicer
from app.dialects.messages.message import find_message_with_thinking
from app.errors import GatewayError


class ChatAnswerFormat:
    """Writes one chat completion. The provider's bytes are relayed, with our fields added."""

    __slots__ = ("_find_relay", "_log_message", "_progress_stream", "answer_id")

    protocol = ChatStreamDecoder.protocol
    answer_id: str | None

    def __init__(self) -> None:
        self.answer_id = None
        # Weak, since the relay may lead back here: a reference cycle would hold the request after its end.
        self._find_relay: Callable[[], ChatStreamSplicer | None] = lambda: None
        self._log_message: Item | None = None
        self._progress_stream: CompactionProgressStream | None = None

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        if answer.protocol == ChatStreamDecoder.protocol:
            return answer, body
        self._log_message = find_message_with_thinking(answer)
        body = encode_completion(answer.decode_whole(body))
        translated = ChatStreamDecoder()
        translated.add_whole(body)
        return translated, body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        return splice_fields(body, fields)

    def build_answer_message(self, answer: Answer) -> Item:
        assert isinstance(answer, ChatStreamDecoder)
        return self._log_message or ChatMessage.from_body(answer.build_message())

    def build_facts(self, answer: Answer) -> dict[str, Any]:
        return {**answer.build_facts()}

    def build_relay(
        self,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        source: str,
    ) -> ChatStreamSplicer:
        progress, is_foreign = self._progress_stream, answer.protocol != self.protocol
        answer.tells_others = not is_foreign
        relay = ChatStreamSplicer(
            fields,
            render_last_fields,
            include_usage=include_usage,
            progress_stream=progress,
            source=source,
            foreign_decoder=answer if is_foreign or progress is not None else None,
        )
        self._find_relay = weakref.ref(relay)
        return relay

    def begin_progress(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        self._progress_stream = CompactionProgressStream(
            completion_id=completion_id, created=created, model=model, style=style, fields=fields
        )

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        assert self._progress_stream is not None
        return self._progress_stream.render_start(event)

    def render_heartbeat(self) -> bytes:
        if (relay := self._find_relay()) is not None:
            return relay.render_heartbeat()
        return b"" if self._progress_stream is None else self._progress_stream.render_heartbeat()

    def render_progress_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        assert self._progress_stream is not None
        return self._progress_stream.render_outcome(event, fields)

    def render_error_frames(self, error: GatewayError) -> bytes:
        return render_error_frames(error)

    def complete_frames(self, last_frame: bytes) -> bytes:
        return b"" if last_frame.endswith(DONE_FRAME) else DONE_FRAME

    def render_stored_answer(
        self, entry: LogMessage, model: str, gateway_fields: Mapping[str, Any], context: Mapping[str, Any]
    ) -> bytes:
        return orjson.dumps({**build_stored_completion(entry, model), **gateway_fields, "context": context})

    def render_stored_stream(
        self,
        entry: LogMessage,
        model: str,
        gateway_fields: Mapping[str, Any],
        context: Mapping[str, Any],
        *,
        include_usage: bool,
    ) -> Iterator[bytes]:
        return render_stored_stream(entry, model, gateway_fields, context, include_usage=include_usage)
