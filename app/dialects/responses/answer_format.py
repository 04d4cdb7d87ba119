"""Writes answers for clients of the Responses API."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.chat.stream_collector import StreamCollector
from app.dialects.chat.stream_frames import EventStyle
from app.dialects.responses import stream_events
from app.dialects.responses.answer_message import build_answer_message
from app.dialects.responses.item_ids import RESPONSE_ID_PREFIX
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.message import ResponsesMessage
from app.dialects.responses.output_writer import OutputWriter, read_logprobs
from app.dialects.responses.response_object import (
    ResponseObject,
    find_incomplete_reason,
    read_output_items,
)
from app.dialects.responses.stored_answer import (
    CREATED_AT,
    PROVIDER_FACTS_KEY,
    render_stored_response,
    render_stored_stream,
)
from app.dialects.responses.stream_events import COMPLETED, INCOMPLETE, EventWriter
from app.dialects.responses.stream_relay import ResponsesStreamRelay
from app.dialects.responses.tools import list_namespaced_names
from app.dialects.sse import SseDecoder
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
        "_original_body",
        "_progress_fields",
        "_style",
        "answer_id",
        "keeps_original",
    )

    answer_id: str | None
    keeps_original: bool

    def __init__(self, response_id: str, created_at: int, fields: Mapping[str, bytes]) -> None:
        self.answer_id, self.keeps_original = response_id, True
        self._fields = fields
        self._lifecycle = LifecycleWriter(ResponseObject(response_id, created_at, fields))
        self._names = list_namespaced_names(orjson.loads(fields.get("tools", b"[]")))
        # Weak, since the relay leads back here: a reference cycle would hold the request after its end.
        self._find_relay: Callable[[], ResponsesStreamRelay | None] = lambda: None
        self._original_body: bytes | None = None
        self._style: EventStyle = "off"
        self._progress_fields = b""

    def render_whole_answer(
        self, collector: StreamCollector, body: bytes, original_body: bytes | None, fields: bytes
    ) -> bytes:
        response = self._lifecycle.response
        if original_body is not None:
            return response.render_original(original_body, fields)
        reason = find_incomplete_reason(collector.finish)
        return response.render(
            fields,
            status=COMPLETED if reason is None else INCOMPLETE,
            model=collector.model,
            output=self._build_items(collector, body),
            usage=collector.usage,
            incomplete_reason=reason,
        )

    def build_answer_message(self, collector: StreamCollector, original_body: bytes | None) -> Item:
        self._original_body = original_body
        if original_body is not None and (items := read_output_items(original_body)):
            return ResponsesMessage.from_raw_items(items)
        return build_answer_message(collector.build_message(), self._build_items(collector), self._lifecycle.response)

    def build_facts(self, collector: StreamCollector) -> dict[str, Any]:
        response = self._lifecycle.response
        facts = {**collector.build_facts(), CREATED_AT: response.created_at}
        relay = self._find_relay()
        original = self._original_body if relay is None else relay.last_original_response
        if original is not None:
            facts[PROVIDER_FACTS_KEY] = response.read_provider_facts(
                original, usage=collector.usage, incomplete_reason=find_incomplete_reason(collector.finish)
            )
        return facts

    def build_relay(
        self,
        decoder: SseDecoder,
        fields: bytes,
        render_last_fields: Callable[[Mapping[str, Any] | None], bytes],
        *,
        include_usage: bool,
        source: str,
    ) -> ResponsesStreamRelay:
        relay = ResponsesStreamRelay(
            decoder,
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
        return self._lifecycle.write_progress(self._progress_fields)

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
        if self._style == "chunk":
            return lifecycle.write_progress(fields, extra={"context_event": dict(event)})
        frame = lifecycle.write_progress(fields)
        if self._style == "named":
            return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) + frame
        if self._style == "comment":
            return b": %b %b\n\n" % (event["type"].encode(), orjson.dumps(event)) + frame
        return frame

    def _build_items(self, collector: StreamCollector, body: bytes | None = None) -> list[stream_events.Item]:
        """Builds the items of a whole answer of a chat provider."""
        output = OutputWriter(self._lifecycle.response, collector.first_choice, EventWriter(), self._names)
        if body is not None and self._lifecycle.response.shows_logprobs:
            output.write_new_content(read_logprobs(body))
        else:
            output.write_new_content()
        output.write_end(is_cut_off=find_incomplete_reason(collector.finish) is not None)
        return output.items

    def _identify_stored_answer(self, entry: LogMessage) -> tuple[str, int]:
        """Returns the id and the time that the answer had for the client that got it first."""
        response_id = str((entry.meta or {}).get("id") or "")
        if not response_id.startswith(RESPONSE_ID_PREFIX):
            response_id = self._lifecycle.response.response_id
        return response_id, int((entry.meta or {}).get(CREATED_AT, self._lifecycle.response.created_at))
