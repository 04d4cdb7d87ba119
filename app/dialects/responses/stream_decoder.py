"""Decodes answers of the Responses API: assembles the items, and makes values if they are wanted. Pure.

Calls that the provider runs itself, and citations of the provider's files, have no value and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from app.conversation.item import Item
from app.conversation.json_text import keep_text, list_objects, render_as_text
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import (
    AnswerValue,
    Begin,
    CallBegin,
    CallText,
    Citation,
    Failure,
    Finish,
    Reasoning,
    Refusal,
    Sealed,
    Text,
    Usage,
    move_citation,
)
from app.dialects.items.chat_form import build_tool_call, read_reasoning_texts
from app.dialects.items.item_kinds import is_client_call
from app.dialects.items.message import build_items_message
from app.dialects.provider_json import decode_object, encode_json, join_surrogates, normalize_json
from app.dialects.sse import DONE_DATA
from app.errors import UpstreamUnavailable

MAX_TIME: Final = 1 << 53
"""Unix seconds. A larger number, or one that is not finite, is no time."""
TEXT_DELTA_TYPE: Final = "response.output_text.delta"
ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"
CREATED_TYPES: Final = ("response.created", "response.queued")
TERMINAL_TYPES: Final = ("response.completed", "response.incomplete", "response.failed")
SILENT_TYPES: Final = (*CREATED_TYPES, "response.in_progress")
"""Types of events after which a stream may still report that the prompt is too long."""
ANSWERED_STATUSES: Final = (None, "completed", "incomplete")
"""Statuses of a response that is an answer. Some servers send none."""
STREAMED_CALL_TYPES: Final = ("function_call", "custom_tool_call")
"""Types of calls whose text comes in deltas."""
ERROR_TYPES: Final = {
    "context_length_exceeded": "invalid_request_error",
    "invalid_prompt": "invalid_request_error",
    "rate_limit_exceeded": "rate_limit_error",
}
"""The type of an error by its code, if the provider names none; that of any other code is `server_error`."""
_FINISH_REASONS: Final = {"content_filter": "content_filter", "steered": "stop"}
"""Why a response is incomplete, as a finish reason; every other reason is a limit."""
_NO_JSON: Final = msgspec.Raw()
_RAW_FIELDS: Final = frozenset({"delta", "logprobs", "item", "response", "error"})
_EMPTY_LOGPROBS_BYTES: Final = len(b"null")
"""The longest JSON text that holds no log probabilities: empty, `[]` or `null`."""
_CONTENT_DELTA_TYPES: Final = (TEXT_DELTA_TYPE, "response.refusal.delta")
_REASONING_DELTA_TYPES: Final = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_CALL_DELTA_TYPES: Final = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")


class ResponseEvent(msgspec.Struct, gc=False):
    """The fields of stream events that are read. Values that most events do not need stay undecoded."""

    type: str | None = None
    sequence_number: int | None = None
    delta: msgspec.Raw = _NO_JSON
    output_index: int | None = None
    summary_index: int | None = None
    content_index: int | None = None
    logprobs: msgspec.Raw = _NO_JSON
    item: msgspec.Raw = _NO_JSON
    response: msgspec.Raw = _NO_JSON
    error: msgspec.Raw = _NO_JSON


_decode_event: Final = msgspec.json.Decoder(ResponseEvent).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NO_EVENT: Final = ResponseEvent("")


class ResponsesStreamDecoder(AnswerDecoder):
    """Decodes a response, event by event. What comes after the event that ends the stream says nothing.

    Attributes:
        last_response: the response object with which the provider has ended the stream, with its bytes.
        has_failed: whether the provider has ended the stream with `response.failed`.
        ended_items: the items that are done, by output index, with the provider's bytes.
        unfinished: data of the events since the last time that no item was open.
    """

    protocol = "responses"

    def __init__(self, source_name: str = "upstream") -> None:
        super().__init__(source_name)
        self.has_failed = False
        self.ended_items: dict[int, bytes] = {}
        self.last_response: bytes | None = None
        self.last_type = ""
        """The type of the event with the last response object."""
        self.unfinished: list[bytes] = []
        self._created: int | None = None
        self._service_tier: str | None = None
        self._begin: Begin | None = None
        """What was last said of the answer's identity."""
        self._has_begun = False
        """Whether an item, or a piece of one, has come."""
        self._is_lenient = False
        """Whether the last event was one that only lenient readers take."""
        self._open_indexes: set[int] = set()
        self._streamed_items: set[int | None] = set()
        """Output indexes of items of which a delta has come."""
        self._call_count = 0
        self._begun_calls: dict[int | None, CallBegin] = {}
        """The calls that have begun, by output index."""

    def watch(self, data: bytes, name: bytes = b"") -> tuple[ResponseEvent, bytes]:
        """Adds the data of one event. Returns the event, and its data as every reader takes it; an event without a type
        for one that says nothing.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """
        event = self._read_event(data, name)
        if event is None:
            return _NO_EVENT, data
        if self._is_lenient or event.item or event.response:
            # An item or a response is read again from the log, so its JSON must be as every reader takes it.
            normal_data = normalize_json(data)
            if normal_data is not data:
                data, kind = normal_data, event.type
                event = _decode_event(data)
                event.type = kind
        kind = event.type or ""
        if kind in _CONTENT_DELTA_TYPES:
            self.has_content = self.has_content or bool(_read_delta(event))
        elif event.item:
            self.has_content = self.has_content or _say_something([_decode_object(event.item)])
        if kind == ITEM_DONE:
            self.ended_items[event.output_index or 0] = bytes(event.item)
            self._open_indexes.discard(event.output_index or 0)
            if not self._open_indexes:
                self.unfinished.clear()
        elif kind == ITEM_ADDED:
            self._open_indexes.add(event.output_index or 0)
        if self._open_indexes and not event.response:
            self.unfinished.append(data)
        return event, data

    def decode(self, data: bytes, name: bytes = b"") -> list[AnswerValue]:
        had_ended = self.has_ended
        event = self._read_event(data, name)
        if event is None:
            return [] if had_ended or self.error_data is None else [Failure(self.error_data)]
        if event.type == TEXT_DELTA_TYPE and event.output_index in self._streamed_items and len(event.logprobs) <= 2:
            return [Text(text, event.output_index)] if (text := _read_delta(event)) else []  # as nearly every event
        return [*self._read_values(event)]

    def add_whole(self, body: bytes) -> None:
        if body.lstrip()[:1] != b"{":
            raise UpstreamUnavailable("The response is not a JSON object.")
        response = _decode_normalized(body)
        status, output = response.get("status"), response.get("output")
        if response.get("object") != "response" and (response.get("error") or response.get("object") == "error"):
            self.error_data = body
        elif response.get("error") or status not in ANSWERED_STATUSES:
            default_message = f"The response has the status {status!r}."
            self.error_data = encode_json(_build_error_body(response.get("error"), default_message))
        elif not isinstance(output, list):
            raise UpstreamUnavailable("The response has no list of output items.")
        else:
            self.last_response = normalize_json(body)
            self.has_content = _say_something(list_objects(output))
            self._read_end(response)
            self.is_complete = self.has_ended = True

    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        response = _decode_normalized(body)
        values: list[AnswerValue] = [self._build_begin()]
        for index, item in enumerate(list_objects(response.get("output"))):
            values += self._read_ended_item(index, item)
        values.append(Finish(str(self.finish)))
        return values if self.usage is None else [*values, Usage(self.usage)]

    def list_items(self) -> list[bytes]:
        """Returns the items of the answer that are done, with the provider's bytes."""
        if self.last_response is not None and (items := read_output_items(self.last_response)):
            return items
        return [self.ended_items[index] for index in sorted(self.ended_items)]

    def build_item(self) -> Item:
        return build_items_message(self.list_items())

    def _read_event(self, data: bytes, name: bytes) -> ResponseEvent | None:
        """Reads an event and what it says of the whole answer; None for one that says nothing more."""
        # Some servers end their streams as chat completions do. Here the last event is the end.
        if self.has_ended or data == DONE_DATA:
            return None
        self._is_lenient = False
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, RecursionError):
            event = None
        try:
            if event is None:
                self._is_lenient = True
                event = _decode_leniently(data, self._source_name)
        except msgspec.ValidationError as error:
            # If the event were skipped, a part of the answer could be missing unnoticed.
            self._fail({"message": f"The provider sent a stream event that cannot be read: {error}."})
            return None
        kind = event.type or name.decode("utf-8", "replace")
        # Gateways in between send errors of their own, which have no type.
        event.type = "error" if not kind and event.error else kind
        if kind == TEXT_DELTA_TYPE:  # as nearly every event
            self._has_begun = True
        elif event.type in ("error", "response.failed"):
            body, response = _decode_normalized(data), _decode_object(event.response)
            own_fields = {name: body[name] for name in ("code", "message", "param") if name in body}
            if event.type == "response.failed":
                self.last_response, self.last_type, self.has_failed = _normalize(event.response), kind, True
            self._fail(response.get("error") or body.get("error") or own_fields)
            return None
        elif kind in SILENT_TYPES:
            self._set_identity(_decode_object(event.response))
        elif kind in TERMINAL_TYPES:
            response = _decode_object(event.response)
            status = "incomplete" if kind == "response.incomplete" else response.get("status")
            self.last_response, self.last_type = _normalize(event.response), kind
            self._read_end({**response, "status": status})
            self.is_complete = self.has_ended = True
            if not self._has_begun:
                # A server that streams nothing but the whole response.
                self.has_content = _say_something(list_objects(response.get("output")))
        elif kind in (ITEM_ADDED, ITEM_DONE) or kind in _REASONING_DELTA_TYPES or kind in _CONTENT_DELTA_TYPES:
            self._has_begun = True
        return event

    def _fail(self, error: Any) -> None:
        self.error_data, self.has_ended = encode_json(_build_error_body(error, "The response failed.")), True

    def _set_identity(self, response: Mapping[str, Any]) -> None:
        response_id, model, created = response.get("id"), response.get("model"), response.get("created_at")
        self.id = response_id if isinstance(response_id, str) else None
        self.model = model if isinstance(model, str) else None
        self._created = int(created) if isinstance(created, int | float) and 0 <= created < MAX_TIME else None

    def _read_end(self, response: Mapping[str, Any]) -> None:
        if self.id is None:
            self._set_identity(response)
        calls = self._begun_calls or any(map(is_client_call, list_objects(response.get("output"))))
        has_calls = bool(calls) or any(
            is_client_call(_decode_object(msgspec.Raw(one))) for one in self.ended_items.values()
        )
        tier = response.get("service_tier")
        self._service_tier = tier if isinstance(tier, str) and tier else None
        self.finish = _choose_finish_reason(response, has_calls=has_calls)
        self.usage = _translate_usage(response.get("usage"))

    def _read_values(self, event: ResponseEvent) -> Iterator[AnswerValue]:
        kind = str(event.type)
        if self._begin is None and self._has_begun and kind not in _CALL_DELTA_TYPES:
            yield self._build_begin()
        if kind == TEXT_DELTA_TYPE:
            if text := _read_delta(event):
                self._streamed_items.add(event.output_index)
                logprobs = bytes(event.logprobs)
                has_logprobs = len(logprobs) > _EMPTY_LOGPROBS_BYTES
                yield Text(text, event.output_index, logprobs=orjson.loads(logprobs) if has_logprobs else ())
        elif kind == "response.refusal.delta":
            if text := _read_delta(event):
                self._streamed_items.add(event.output_index)
                yield Refusal(text, event.output_index)
        elif kind in _REASONING_DELTA_TYPES:
            if text := _read_delta(event):
                self._streamed_items.add(event.output_index)
                is_summary = event.summary_index is not None
                part = event.summary_index if is_summary else event.content_index
                yield Reasoning(text, event.output_index, part, is_summary)
        elif kind in _CALL_DELTA_TYPES:
            # A call whose beginning has not come is read at its end.
            call = self._begun_calls.get(event.output_index)
            if call is not None and (text := _read_delta(event)):
                self._streamed_items.add(event.output_index)
                yield CallText(call.call, text)
        elif kind == ITEM_ADDED:
            item = _decode_object(event.item)
            if item.get("type") in STREAMED_CALL_TYPES:
                # Text that stands here already is repeated by deltas or at the end.
                begin, _ = self._build_call(item)
                if self._find_call(event.output_index, begin.id) is None:
                    self._streamed_items.discard(event.output_index)
                    yield self._begin_call(event.output_index, begin)
        elif kind == ITEM_DONE:
            yield from self._read_ended_item(event.output_index, _decode_object(event.item))
        elif kind in TERMINAL_TYPES:
            yield from self._read_last_values(_decode_object(event.response))

    def _read_last_values(self, response: Mapping[str, Any]) -> Iterator[AnswerValue]:
        if self._begin is None or self._begin.id != self.id:
            yield self._build_begin()
        if not self._has_begun:
            for index, item in enumerate(list_objects(response.get("output"))):
                yield from self._read_ended_item(index, item)
        yield Finish(str(self.finish))
        if self.usage is not None:
            yield Usage(self.usage)

    def _build_begin(self) -> Begin:
        self._begin = Begin(self.id, self._created, self.model, self._service_tier)
        return self._begin

    def _build_call(self, item: Mapping[str, Any]) -> tuple[CallBegin, str]:
        """Builds the beginning of a call, and what it is called with: a text, whatever the server sends."""
        texts = {name: render_as_text(item.get(name)) for name in ("arguments", "input") if name in item}
        call = build_tool_call({**item, **texts})
        is_custom, call_id = call["type"] == "custom", call["id"] or item.get("id") or ""
        body, text_name = (call["custom"], "input") if is_custom else (call["function"], "arguments")
        return CallBegin(self._call_count, call_id, body["name"], is_custom), body[text_name]

    def _begin_call(self, output_index: int | None, begin: CallBegin) -> CallBegin:
        self._call_count += 1
        self._begun_calls[output_index] = begin
        return begin

    def _find_call(self, output_index: int | None, call_id: str) -> CallBegin | None:
        """Returns a call that has begun. The id is compared, since some servers give several calls one index."""
        call = self._begun_calls.get(output_index)
        return call if call is not None and call.id == call_id else None

    def _read_ended_item(self, output_index: int | None, item: Mapping[str, Any]) -> Iterator[AnswerValue]:
        """Reads an item that has ended: all of it if no delta has come, and what deltas do not say."""
        kind, is_streamed = item.get("type"), output_index in self._streamed_items
        self._streamed_items.add(output_index)
        if kind == "message":
            yield from _read_message(output_index, item, is_streamed=is_streamed)
        elif kind == "reasoning":
            if not is_streamed:
                is_summary = not item.get("content")
                for index, text in enumerate(text for text in read_reasoning_texts(item) if text):
                    yield Reasoning(text, output_index, index, is_summary)
            if isinstance(sealed := item.get("encrypted_content"), str):
                yield Sealed("reasoning", sealed, output_index)
        elif is_client_call(item):
            begin, text = self._build_call(item)
            begun = self._find_call(output_index, begin.id)
            if begun is None:
                yield self._begin_call(output_index, begin)
            if text and (begun is None or not is_streamed):
                yield CallText((begun or begin).call, text)


def read_output_items(body: bytes) -> list[bytes]:
    """Reads the items of a Responses provider's object, each with its bytes.

    Raises:
        msgspec.DecodeError: the body is not an object with a list `output`.
    """
    return [bytes(raw) for raw in _decode_items(_decode_members(body).get("output", msgspec.Raw(b"[]")))]


def _read_message(output_index: int | None, item: Mapping[str, Any], *, is_streamed: bool) -> Iterator[AnswerValue]:
    text, refusal = "", ""
    logprobs: list[Any] = []
    citations: list[Citation] = []
    for part in list_objects(item.get("content")):
        if part.get("type") == "refusal":
            refusal += keep_text(part.get("refusal"))
            continue
        start = len(text)
        text += keep_text(part.get("text"))
        logprobs += list_objects(part.get("logprobs"))
        citations += [
            Citation(move_citation(annotation, start), output_index)
            for annotation in list_objects(part.get("annotations"))
            if annotation.get("type") == "url_citation"
        ]
    if text and not is_streamed:
        yield Text(text, output_index, logprobs=logprobs)
    if refusal and not is_streamed:
        yield Refusal(refusal, output_index)
    yield from citations


def _say_something(items: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether items have something that a user or program would see: a call, a text, a refusal."""
    contents = [part for item in items if item.get("type") == "message" for part in list_objects(item.get("content"))]
    return any(map(is_client_call, items)) or any(
        part.get("refusal" if part.get("type") == "refusal" else "text") for part in contents
    )


def _choose_finish_reason(response: Mapping[str, Any], *, has_calls: bool) -> str:
    if response.get("status") == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH_REASONS.get(reason, "length") if isinstance(reason, str) else "length"
    return "tool_calls" if has_calls else "stop"


def _translate_usage(usage: Any) -> dict[str, Any] | None:
    """Translates a usage object to the form of the log; None if the provider counted no tokens."""
    if not isinstance(usage, dict) or not isinstance(usage.get("input_tokens"), int):
        return None
    prompt_tokens, output_tokens = usage["input_tokens"], usage.get("output_tokens") or 0
    translated = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": usage.get("total_tokens") or prompt_tokens + output_tokens,
    }
    if isinstance(details := usage.get("input_tokens_details"), dict):
        translated["prompt_tokens_details"] = details
    if isinstance(details := usage.get("output_tokens_details"), dict):
        translated["completion_tokens_details"] = details
    return translated


def _build_error_body(error: Any, default_message: str) -> dict[str, Any]:
    """Builds an error body as OpenAI's errors outside of streams have it."""
    fields = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    code = fields.get("code")
    error_type = ERROR_TYPES.get(code, "server_error") if isinstance(code, str) else "server_error"
    return {
        "error": {
            **fields,
            "message": fields.get("message") or default_message,
            "type": fields.get("type") or error_type,
            "param": fields.get("param"),
            "code": code,
        }
    }


def _decode_leniently(data: bytes, source: str) -> ResponseEvent:
    """Decodes the data of an event that the typed decoder does not take: with half of a surrogate pair, which some
    servers send in a delta of its own, or no JSON at all.

    Raises:
        msgspec.ValidationError: a field has another type than it must have.
        UpstreamUnavailable: the data is not a JSON object.
    """
    body = decode_object(data, repr(source))
    fields = {name: body[name] for name in ResponseEvent.__struct_fields__ if name in body}
    raw_fields = {name: msgspec.Raw(json.dumps(fields[name]).encode()) for name in _RAW_FIELDS & fields.keys()}
    names = join_surrogates({name: value for name, value in fields.items() if name not in raw_fields})
    return msgspec.convert({**names, **raw_fields}, ResponseEvent)


def _decode_object(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Returns the decoded object of a field; an empty one if the field has another value."""
    text = bytes(raw)
    return _decode_normalized(text) if text[:1] == b"{" else {}


def _decode_normalized(data: bytes) -> dict[str, Any]:
    """Decodes an object whose names and texts are stored, too: so no text has half of a surrogate pair.

    Raises:
        UpstreamUnavailable: the data is nested too deeply, or is not JSON.
    """
    return decode_object(normalize_json(data))


def _read_delta(event: ResponseEvent) -> str:
    """Returns the text of an event's delta; empty if it is not a text."""
    delta = bytes(event.delta)
    if delta[:1] != b'"':
        return ""
    try:
        return _decode_text(delta)
    except msgspec.DecodeError:
        return str(json.loads(delta))


def _normalize(data: msgspec.Raw) -> bytes:
    return normalize_json(bytes(data)) if data else b""
