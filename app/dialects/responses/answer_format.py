"""Writes answers for clients of the Responses API."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from app.conversation.conversation_types import RESPONSE_ID_PREFIX, LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_format import EventStyle, render_progress_event
from app.dialects.items.message import build_items_message
from app.dialects.responses.answer_message import build_answer_message
from app.dialects.responses.answer_relay import ResponsesStreamRelay
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import ResponseObject, find_incomplete_reason
from app.dialects.responses.stored_answer import (
    CREATED_AT,
    PROVIDER_FACTS_KEY,
    render_stored_response,
    render_stored_stream,
)
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.responses.stream_encoder import ResponsesStreamEncoder
from app.dialects.responses.stream_events import COMPLETED, INCOMPLETE, EventWriter
from app.dialects.responses.stream_events import Item as OutputItem
from app.dialects.responses.tools import list_namespaced_names
from app.errors import GatewayError


class ResponsesAnswerFormat:
    """Writes one response: as an object, or as a stream of numbered events.

    Args:
        response_id: `resp_` and hex digits.
        created_at: Unix seconds.
        fields: the request's fields, each as JSON.
    """

    __slots__ = (
        "_fields",
        "_find_relay",
        "_lifecycle",
        "_names",
        "_progress_fields",
        "_style",
        "_whole_items",
        "answer_id",
    )

    protocol = ResponsesStreamDecoder.protocol
    answer_id: str | None

    def __init__(self, response_id: str, created_at: int, fields: Mapping[str, bytes]) -> None:
        self.answer_id = response_id
        self._fields = fields
        self._lifecycle = LifecycleWriter(ResponseObject(response_id, created_at, fields))
        self._names = list_namespaced_names(orjson.loads(fields.get("tools", b"[]")))
        # Weak, since the relay leads back here: a reference cycle would hold the request after its end.
        self._find_relay: Callable[[], ResponsesStreamRelay | None] = lambda: None
        self._whole_items: list[OutputItem] = []
        self._style: EventStyle = "off"
        self._progress_fields = b""

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        if answer.protocol != ResponsesStreamDecoder.protocol:
            output = ResponsesStreamEncoder(self._lifecycle.response, EventWriter(), self._names)
            output.encode(answer.decode_whole(body))
            output.write_end(is_cut_off=find_incomplete_reason(answer.finish) is not None)
            self._whole_items = output.items
        return answer, body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        response = self._lifecycle.response
        if isinstance(answer, ResponsesStreamDecoder) and answer.last_response is not None:
            return response.render_original(answer.last_response, fields)
        reason = find_incomplete_reason(answer.finish)
        return response.render(
            fields,
            status=COMPLETED if reason is None else INCOMPLETE,
            model=answer.model,
            output=self._whole_items,
            usage=answer.usage,
            incomplete_reason=reason,
        )

    def build_answer_message(self, answer: Answer) -> Item:
        if isinstance(answer, ResponsesStreamDecoder):
            return build_items_message(answer.list_items())
        return build_answer_message(answer.build_item(), self._whole_items, self._lifecycle.response)

    def build_facts(self, answer: Answer) -> dict[str, Any]:
        response = self._lifecycle.response
        facts = {**answer.build_facts(), CREATED_AT: response.created_at}
        if isinstance(answer, ResponsesStreamDecoder) and answer.last_response is not None:
            facts[PROVIDER_FACTS_KEY] = response.read_provider_facts(
                answer.last_response, usage=answer.usage, incomplete_reason=find_incomplete_reason(answer.finish)
            )
        return facts

    def build_relay(
        self,
        answer: AnswerDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        source: str,
    ) -> ResponsesStreamRelay:
        relay = ResponsesStreamRelay(
            answer,
            fields,
            render_last_fields,
            source=source,
            lifecycle=self._lifecycle,
            tool_names=self._names,
        )
        self._find_relay = weakref.ref(relay)
        return relay

    def begin_progress(self, *, completion_id: str, created: int, model: str, style: EventStyle, fields: bytes) -> None:
        self._style, self._progress_fields = style, fields

    def render_progress_start(self, event: Mapping[str, Any]) -> bytes:
        return self._lifecycle.write_created(self._progress_fields) + self._render_progress(event)

    def render_heartbeat(self) -> bytes:
        # An event, not a comment: clients such as Codex count the time since the last event.
        if (relay := self._find_relay()) is not None:
            return relay.render_heartbeat()
        is_running = self._lifecycle.has_begun and self._lifecycle.end is None
        return self._lifecycle.write_progress(self._progress_fields) if is_running else b""

    def render_progress_outcome(self, event: Mapping[str, Any], fields: bytes) -> bytes:
        self._progress_fields = fields
        return self._render_progress(event)

    def render_error_frames(self, error: GatewayError) -> bytes:
        # Several clients may wait for one answer. All get the same end.
        if self._lifecycle.end is not None:
            return self._lifecycle.end
        if (relay := self._find_relay()) is not None:
            return relay.render_failure(error)
        begin = self._lifecycle.write_begin(self._progress_fields)
        return self._lifecycle.write_failure(error, self._progress_fields, frames_before=begin)

    def complete_frames(self, last_frame: bytes) -> bytes:
        if self._lifecycle.end is None:
            relay = self._find_relay()
            return b"" if relay is None else relay.render_end()
        return b"" if last_frame.endswith(self._lifecycle.end) else self._lifecycle.end

    def render_stored_answer(
        self, entry: LogMessage, model: str, gateway_fields: Mapping[str, Any], context: Mapping[str, Any]
    ) -> bytes:
        all_fields = {**gateway_fields, "context": context}
        return render_stored_response(*self._identify_stored_answer(entry), self._fields, entry, model, all_fields)

    def render_stored_stream(
        self,
        entry: LogMessage,
        model: str,
        gateway_fields: Mapping[str, Any],
        context: Mapping[str, Any],
        *,
        include_usage: bool,
    ) -> Iterator[bytes]:
        all_fields = {**gateway_fields, "context": context}
        return render_stored_stream(*self._identify_stored_answer(entry), self._fields, entry, model, all_fields)

    def _render_progress(self, event: Mapping[str, Any]) -> bytes:
        lifecycle, fields = self._lifecycle, self._progress_fields
        return render_progress_event(self._style, event, lambda extra: lifecycle.write_progress(fields, extra=extra))

    def _identify_stored_answer(self, entry: LogMessage) -> tuple[str, int]:
        """Returns the id and the time that the answer had for the client that got it first."""
        response_id = str((entry.meta or {}).get("id") or "")
        if not response_id.startswith(RESPONSE_ID_PREFIX):
            response_id = self._lifecycle.response.response_id
        return response_id, int((entry.meta or {}).get(CREATED_AT, self._lifecycle.response.created_at))
