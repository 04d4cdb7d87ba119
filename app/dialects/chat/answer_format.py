"""Writes answers for clients of Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_format import AnswerFormat, StoredAnswer, render_progress_event
from app.dialects.chat.stored_answer import build_stored_completion, render_stored_stream
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import encode_completion
from app.dialects.chat.stream_frames import render_error_frames, render_progress_chunk, splice_fields
from app.dialects.chat.stream_splicer import ChatStreamSplicer
from app.dialects.messages.message import find_message_with_thinking
from app.dialects.stream_relay import RelayOptions
from app.errors import GatewayError


class ChatAnswerFormat(AnswerFormat):
    """Writes one chat completion. The provider's bytes are relayed, with our fields added."""

    protocol = ChatStreamDecoder.protocol
    _log_message: Item | None = None

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        if answer.protocol == self.protocol:
            return answer, body
        self._log_message = find_message_with_thinking(answer)
        body = encode_completion(answer.decode_whole(body))
        translated = ChatStreamDecoder()
        translated.add_whole(body)
        return translated, body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        return splice_fields(body, fields)

    def build_answer_message(self, answer: Answer) -> Item:
        return self._log_message or answer.build_item()

    def _make_relay(self, answer: AnswerDecoder, options: RelayOptions) -> ChatStreamSplicer:
        progress = self._progress if self._progress.completion_id else None
        is_foreign = answer.protocol != self.protocol
        answer.tells_others = not is_foreign
        return ChatStreamSplicer(options, progress, answer if is_foreign or progress is not None else None)

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        progress = self._progress
        return render_progress_event(
            progress.style, event, lambda extra: render_progress_chunk(progress, extra, role="assistant")
        )

    def _render_progress(self, extra: Mapping[str, Any]) -> bytes:
        return render_progress_chunk(self._progress, extra) if self._progress.completion_id else b""

    def render_error_frames(self, error: GatewayError) -> bytes:
        return render_error_frames(error)

    def render_stored_answer(self, stored: StoredAnswer) -> bytes:
        return orjson.dumps({**build_stored_completion(stored.entry, stored.model), **stored.all_fields})

    def render_stored_stream(self, stored: StoredAnswer) -> Iterator[bytes]:
        return render_stored_stream(stored)
