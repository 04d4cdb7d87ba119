"""Writes answers for clients of the Responses API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from app.conversation.conversation_types import RESPONSE_ID_PREFIX
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_format import AnswerFormat, NewCompaction, StoredAnswer
from app.dialects.responses.answer_message import build_answer_message
from app.dialects.responses.answer_relay import ResponsesStreamRelay
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import ResponseObject, find_incomplete_reason
from app.dialects.responses.stored_answer import (
    COMPLETED_AT,
    CREATED_AT,
    PROVIDER_FACTS_KEY,
    identify_response,
    render_stored_response,
    render_stored_stream,
)
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.responses.stream_encoder import ResponsesStreamEncoder
from app.dialects.responses.stream_events import EventWriter
from app.dialects.responses.stream_events import Item as OutputItem
from app.dialects.responses.tools import list_namespaced_names
from app.dialects.stream_relay import RelayOptions
from app.errors import GatewayError


class ResponsesAnswerFormat(AnswerFormat):
    """Writes one response: as an object, or as a stream of numbered events.

    Args:
        response_id: `resp_` and hex digits.
        created_at: Unix seconds.
        fields: the request's fields, each as JSON.
        unix_seconds: returns the time.
    """

    protocol = ResponsesStreamDecoder.protocol
    _find_relay: Callable[[], ResponsesStreamRelay | None]

    def __init__(
        self,
        response_id: str,
        created_at: int,
        fields: Mapping[str, bytes],
        unix_seconds: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(response_id)
        self._fields = fields
        self._lifecycle = LifecycleWriter(ResponseObject(response_id, created_at, fields, unix_seconds))
        self._names = list_namespaced_names(orjson.loads(fields.get("tools", b"[]")))
        self._whole_items: list[OutputItem] = []

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        if answer.protocol != self.protocol:
            output = ResponsesStreamEncoder(self._lifecycle.response, EventWriter(), self._names)
            output.items = self._lifecycle.first_items
            output.encode(answer.decode_whole(body))
            output.write_end(is_cut_off=find_incomplete_reason(answer.finish) is not None)
            self._whole_items = output.items
        return answer, body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        response = self._lifecycle.response
        if isinstance(answer, ResponsesStreamDecoder) and answer.last_response is not None:
            return response.render_original(answer.last_response, fields, self._lifecycle.first_items)
        return response.render(
            fields, model=answer.model, output=self._whole_items, usage=answer.usage, finish=answer.finish
        )

    def build_answer_message(self, answer: Answer) -> Item:
        if isinstance(answer, ResponsesStreamDecoder):
            return answer.build_item()
        items = self._whole_items[len(self._lifecycle.first_items) :]
        return build_answer_message(answer.build_item(), items, self._lifecycle.response)

    def build_facts(self, answer: Answer) -> dict[str, Any]:
        response = self._lifecycle.response
        facts = {**answer.build_facts(), CREATED_AT: response.created_at}
        if answer.is_complete:
            facts[COMPLETED_AT] = response.completed_at
        if isinstance(answer, ResponsesStreamDecoder) and answer.last_response is not None:
            facts[PROVIDER_FACTS_KEY] = response.read_provider_facts(
                answer.last_response, usage=answer.usage, finish=answer.finish
            )
        return facts

    def _make_relay(self, answer: AnswerDecoder, options: RelayOptions) -> ResponsesStreamRelay:
        return ResponsesStreamRelay(answer, options, self._lifecycle, self._names)

    def _render_progress_begin(self) -> bytes:
        return self._lifecycle.write_created(self._progress.fields)

    def _render_progress(self, extra: Mapping[str, Any]) -> bytes:
        # An event, not a comment: clients such as Codex count the time since the last event.
        is_running = self._lifecycle.has_begun and self._lifecycle.end is None
        return self._lifecycle.write_progress(self._progress.fields, extra=extra) if is_running else b""

    def render_error_frames(self, error: GatewayError) -> bytes:
        # Several clients may wait for one answer. All get the same end.
        if self._lifecycle.end is not None:
            return self._lifecycle.end
        if (relay := self._find_relay()) is not None:
            return relay.render_failure(error)
        fields = self._progress.fields
        return self._lifecycle.write_end(fields, self._lifecycle.write_begin(fields), error)

    def render_compaction_begin(self) -> bytes:
        return self._lifecycle.write_compaction_begin()

    def add_compaction(self, compaction: NewCompaction) -> bytes:
        self._lifecycle.set_compaction(compaction.capsule)
        return self._lifecycle.write_compaction() if self._lifecycle.has_begun else b""

    def render_whole_compaction(self, compaction: NewCompaction, fields: bytes) -> bytes:
        self._lifecycle.set_compaction(compaction.capsule)
        return self._lifecycle.response.render(fields, output=self._lifecycle.first_items, usage=compaction.usage)

    def render_compaction_end(self, compaction: NewCompaction, fields: bytes) -> bytes:
        frames_before = self.add_compaction(compaction)
        return self._lifecycle.write_end(
            fields, frames_before, output=self._lifecycle.first_items, usage=compaction.usage
        )

    def render_stored_answer(self, stored: StoredAnswer) -> bytes:
        return render_stored_response(self._identify_stored_answer(stored), stored)

    def render_stored_stream(self, stored: StoredAnswer) -> Iterator[bytes]:
        return render_stored_stream(self._identify_stored_answer(stored), stored)

    def _identify_stored_answer(self, stored: StoredAnswer) -> ResponseObject:
        """Returns the object with the id and the time that the answer had for the client that got it first."""
        response_id = str(stored.facts.get("id") or "")
        if not response_id.startswith(RESPONSE_ID_PREFIX):
            response_id = self._lifecycle.response.response_id
        return identify_response(response_id, stored.facts, self._lifecycle.response.created_at, self._fields)
