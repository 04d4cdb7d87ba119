"""Translates replies of the Responses API into chat completions, the form in which the gateway reads all answers. Pure.

Reasoning becomes `reasoning_content`, calls become `tool_calls`. Calls that the provider runs itself, encrypted
reasoning, and citations of the provider's files have no form in a chat completion and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from app.dialects.answer_format import ORIGINAL_EVENT
from app.dialects.chat.counted_content import encode_compact_json
from app.dialects.chat.stream_frames import DONE_DATA, DONE_FRAME, decode_chunk, encode_chunk
from app.dialects.responses.chat_form import PARAGRAPH_BREAK, build_tool_call, read_reasoning_texts
from app.dialects.responses.item_kinds import is_client_call
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamUnavailable

MAX_TIME: Final = 1 << 53
"""Unix seconds. A larger number, or one that is not finite, is no time."""
TEXT_DELTA_TYPE: Final = "response.output_text.delta"
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
_NO_ITEM: Final = -1
_NO_JSON: Final = msgspec.Raw()
_RAW_FIELDS: Final = frozenset({"delta", "logprobs", "item", "response", "error"})
_EMPTY_LOGPROBS_BYTES: Final = len(b"null")
"""The longest JSON text that holds no log probabilities: empty, `[]` or `null`."""
_ARGUMENTS_DELTA: Final = b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}'
_CUSTOM_INPUT_DELTA: Final = b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}'
_CHUNK_END: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'
_TEXT_CHUNK_END: Final = b"}" + _CHUNK_END
_RAW_SEPARATOR: Final = orjson.dumps(PARAGRAPH_BREAK)[:-1]


def translate_response(body: bytes) -> bytes:
    """Translates a whole response into a chat completion. A response that failed becomes an error body. A body that is
    an error already is returned unchanged.

    Raises:
        UpstreamUnavailable: the body is neither a response nor an error.
    """
    if body.lstrip()[:1] != b"{":
        raise UpstreamUnavailable("The response is not a JSON object.")
    response = decode_chunk(body)
    status, output = response.get("status"), response.get("output")
    if response.get("object") != "response" and (response.get("error") or response.get("object") == "error"):
        return body
    if response.get("error") or status not in ANSWERED_STATUSES:
        return encode_chunk(_build_error_body(response.get("error"), f"The response has the status {status!r}."))
    if not isinstance(output, list):
        raise UpstreamUnavailable("The response has no list of output items.")
    choice = _build_choice([item for item in output if isinstance(item, dict)])
    reason = _choose_finish_reason(response, has_calls="tool_calls" in choice["message"])
    completion = {
        **_read_identity_fields(response),
        "object": "chat.completion",
        "choices": [{**choice, "finish_reason": reason}],
    }
    if (usage := _translate_usage(response.get("usage"))) is not None:
        completion["usage"] = usage
    if response.get("service_tier"):
        completion["service_tier"] = response["service_tier"]
    return encode_chunk(completion)


def _build_choice(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Builds the choice of a chat completion from output items, without its finish reason."""
    messages = [_MessageText(item) for item in items if item.get("type") == "message"]
    calls = [_build_call(item) for item in items if is_client_call(item)]
    refusal = "".join(message.refusal for message in messages)
    text = PARAGRAPH_BREAK.join(message.text for message in messages if message.text)
    content = text if text or not (calls or refusal) else None
    chat_message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal or None}
    if reasoning := PARAGRAPH_BREAK.join(text for item in items for text in _read_reasoning(item)):
        chat_message["reasoning_content"] = reasoning
    annotations: list[dict[str, Any]] = []
    start = 0
    for message in messages:
        annotations += message.build_annotations(start)
        start += message.separated_length
    if annotations:
        chat_message["annotations"] = annotations
    if calls:
        chat_message["tool_calls"] = calls
    logprobs = [entry for message in messages for entry in message.logprobs]
    return {
        "index": 0,
        "message": chat_message,
        "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
    }


class _MessageText:
    """What the content of a message item says.

    Attributes:
        text: all texts.
        refusal: all refusals.
        logprobs: the log probabilities of the texts.
    """

    __slots__ = ("_citations", "logprobs", "refusal", "text")

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.text = self.refusal = ""
        self.logprobs: list[Any] = []
        self._citations: list[tuple[int, Mapping[str, Any]]] = []
        """Citations of web pages, each with the place in `text` where its part begins."""
        for part in _list_objects(item.get("content")):
            if part.get("type") == "refusal":
                self.refusal += _read_text(part.get("refusal"))
                continue
            start = len(self.text)
            self.text += _read_text(part.get("text"))
            self.logprobs += _list_objects(part.get("logprobs"))
            self._citations += [
                (start, annotation)
                for annotation in _list_objects(part.get("annotations"))
                if annotation.get("type") == "url_citation"
            ]

    @property
    def separated_length(self) -> int:
        """The characters of the text and the separator after it."""
        return len(self.text) + len(PARAGRAPH_BREAK) if self.text else 0

    def build_annotations(self, start: int) -> list[dict[str, Any]]:
        """Builds the annotations of a chat message in which the text begins at the character `start`."""
        return [
            {"type": "url_citation", "url_citation": _shift_citation(citation, start + part_start)}
            for part_start, citation in self._citations
        ]


def _shift_citation(citation: Mapping[str, Any], offset: int) -> dict[str, Any]:
    return {
        name: value + offset if name in ("start_index", "end_index") and isinstance(value, int) else value
        for name, value in citation.items()
        if name != "type"
    }


def _read_reasoning(item: Mapping[str, Any]) -> list[str]:
    return [text for text in read_reasoning_texts(item) if text] if item.get("type") == "reasoning" else []


def _build_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Builds a tool call of a chat message. What it is called with is a text, whatever the server sends."""
    texts = {name: _encode_unless_text(item.get(name)) for name in ("arguments", "input") if name in item}
    call = build_tool_call({**item, **texts})
    return {**call, "id": call["id"] or item.get("id") or ""}


def _encode_unless_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else encode_compact_json(value)


def _choose_finish_reason(response: Mapping[str, Any], *, has_calls: bool) -> str:
    if response.get("status") == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH_REASONS.get(reason, "length") if isinstance(reason, str) else "length"
    return "tool_calls" if has_calls else "stop"


def _translate_usage(usage: Any) -> dict[str, Any] | None:
    """Translates a usage object; None if the provider counted no tokens."""
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
    """Builds an error body as chat completions have it."""
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


def _list_objects(value: Any) -> list[Any]:
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def _read_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _ResponseEvent(msgspec.Struct, gc=False):
    """The fields of stream events that are read. Values that most events do not need stay undecoded."""

    type: str | None = None
    delta: msgspec.Raw = _NO_JSON
    output_index: int | None = None
    summary_index: int | None = None
    content_index: int | None = None
    logprobs: msgspec.Raw = _NO_JSON
    item: msgspec.Raw = _NO_JSON
    response: msgspec.Raw = _NO_JSON
    error: msgspec.Raw = _NO_JSON


class _StreamedCall(msgspec.Struct, frozen=True):
    """A call that has begun: its number among the calls, and its id."""

    number: int
    id: str
    is_custom: bool

    def build_delta(self, text: bytes) -> bytes:
        """Builds the delta with more of what the call is called with, as JSON text."""
        return (_CUSTOM_INPUT_DELTA if self.is_custom else _ARGUMENTS_DELTA) % (self.number, text)


_decode_event: Final = msgspec.json.Decoder(_ResponseEvent).decode


class ResponsesStreamTranslator:
    """Translates a stream of the Responses API into chat chunks, incrementally.

    `[DONE]` follows only after `response.completed` or `response.incomplete`. A failure becomes a chunk with an error.
    Nothing is translated after that.

    Args:
        source_name: the provider's name, for error messages.
        keeps_original: each event of the provider is handed on as an event named `original`, before its chunk.
    """

    __slots__ = (
        *("_call_count", "_calls", "_chunk_start", "_decoder", "_handlers", "_has_begun", "_has_ended", "_identity"),
        *("_keeps_original", "_reasoning_place", "_streamed_items", "_text_chunk_start", "_text_item", "_text_length"),
    )

    def __init__(self, source_name: str = "upstream", *, keeps_original: bool = False) -> None:
        self._decoder = SseDecoder(source_name)
        self._keeps_original = keeps_original
        self._has_begun = False
        """Whether the chunk with the role was made."""
        self._has_ended = False
        self._streamed_items: set[int | None] = set()
        """Output indexes of items of which a delta has come."""
        self._text_item: int | None = _NO_ITEM
        """The output index of the message whose text came last."""
        self._text_length = 0
        """Characters of the texts of finished messages, with their separators."""
        self._reasoning_place: tuple[int | None, ...] | None = None
        """The item and part of the reasoning whose text came last."""
        self._call_count = 0
        self._calls: dict[int | None, _StreamedCall] = {}
        """The calls that have begun, by output index."""
        self._set_identity({})
        self._handlers: dict[str, Callable[[_ResponseEvent, bytes], bytes]] = {
            "response.created": self._read_identity,
            "response.in_progress": self._read_identity,
            "response.output_item.added": self._begin_item,
            TEXT_DELTA_TYPE: self._translate_text_delta,
            "response.refusal.delta": self._translate_refusal_delta,
            "response.reasoning_summary_text.delta": self._translate_reasoning_delta,
            "response.reasoning_text.delta": self._translate_reasoning_delta,
            "response.function_call_arguments.delta": self._translate_call_delta,
            "response.custom_tool_call_input.delta": self._translate_call_delta,
            "response.output_item.done": self._end_item,
            "response.completed": self._end,
            "response.incomplete": self._end,
            "response.failed": self._fail,
            "error": self._fail,
        }

    def feed(self, piece: bytes) -> bytes:
        """Returns the frames for the next bytes of the stream.

        Raises:
            UpstreamUnavailable: an event is too long.
        """
        events = self._decoder.feed(piece)
        if len(events) == 1:
            return self._translate_event(events[0])
        return b"".join([self._translate_event(event) for event in events])

    def flush(self) -> bytes:
        """Returns the frames for a last event without its blank line. An event that was cut off is left out."""
        frames = []
        for event in self._decoder.flush():
            try:
                orjson.loads(event.data or b"")
            except orjson.JSONDecodeError:
                continue
            frames.append(self._translate_event(event))
        return b"".join(frames)

    def _translate_event(self, event: SseEvent) -> bytes:
        data = event.data
        # Some servers end their streams as chat completions do. Here the last event is the end.
        if not data or self._has_ended or data.strip() == DONE_DATA:
            return b""
        try:
            decoded = _decode_event_data(data)
        except msgspec.ValidationError as error:
            # If the event were skipped, a part of the answer could be missing unnoticed.
            return self._render_error({"message": f"The provider sent a stream event that cannot be read: {error}."})
        except UpstreamUnavailable:
            # The reader of the chunks refuses what is not JSON.
            return b"data: %b\n\n" % _render_data(data)
        delta = bytes(decoded.delta)
        if (
            decoded.type == TEXT_DELTA_TYPE
            and decoded.output_index == self._text_item
            and delta[:1] == b'"'
            and len(decoded.logprobs) <= _EMPTY_LOGPROBS_BYTES
        ):  # as nearly every event
            chunk = self._text_chunk_start + delta + _TEXT_CHUNK_END
        else:
            kind = decoded.type or event.name.decode("utf-8", "replace")
            # Gateways in between send errors of their own, which have no type.
            handler = self._handlers.get("error" if not kind and len(decoded.error) else kind)
            chunk = b"" if handler is None else handler(decoded, data)
        if not self._keeps_original:
            return chunk
        return b"event: %b\ndata: %b\n\n%b" % (ORIGINAL_EVENT, _render_data(data), chunk)

    def _read_identity(self, event: _ResponseEvent, _: bytes) -> bytes:
        self._set_identity(_decode_object(event.response))
        return b""

    def _set_identity(self, response: Mapping[str, Any]) -> None:
        """Sets what all chunks say of the completion."""
        self._identity = {**_read_identity_fields(response), "object": "chat.completion.chunk"}
        self._chunk_start = b'data: %b,"choices":[{"index":0,"delta":' % encode_chunk(self._identity)[:-1]
        self._text_chunk_start = self._chunk_start + b'{"content":'

    def _begin(self) -> bytes:
        """Returns the chunk with the role, if it has not come yet."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return self._render_chunk(b'{"role":"assistant","content":""}')

    def _render_chunk(self, delta: bytes) -> bytes:
        return self._chunk_start + delta + _CHUNK_END

    def _begin_item(self, event: _ResponseEvent, _: bytes) -> bytes:
        item = _decode_object(event.item)
        chunks = self._begin()
        if item.get("type") in STREAMED_CALL_TYPES:
            # Text that stands here already is repeated by deltas or at the end.
            call = _build_call({**item, "arguments": "", "input": ""})
            if self._find_call(event.output_index, call["id"]) is None:
                self._streamed_items.discard(event.output_index)
                chunks += self._begin_call(event.output_index, call)
        return chunks

    def _begin_call(self, output_index: int | None, call: Mapping[str, Any]) -> bytes:
        number, self._call_count = self._call_count, self._call_count + 1
        self._calls[output_index] = _StreamedCall(number, call["id"], is_custom=call["type"] == "custom")
        return self._render_chunk(encode_chunk({"tool_calls": [{"index": number, **call}]}))

    def _find_call(self, output_index: int | None, call_id: str) -> _StreamedCall | None:
        """Returns a call that has begun. The id is compared, since some servers give several calls one index."""
        call = self._calls.get(output_index)
        return call if call is not None and call.id == call_id else None

    def _translate_text_delta(self, event: _ResponseEvent, _: bytes) -> bytes:
        if not (text := _read_delta(event)):
            return self._begin()
        return self._render_text(event.output_index, text, bytes(event.logprobs))

    def _render_text(self, output_index: int | None, text: bytes, logprobs: bytes = b"") -> bytes:
        chunks = self._begin()
        if output_index != self._text_item:
            text = text if self._text_item == _NO_ITEM else _prefix_separator(text)
            self._text_item = output_index
        self._streamed_items.add(output_index)
        if len(logprobs) <= _EMPTY_LOGPROBS_BYTES:
            return chunks + self._text_chunk_start + text + _TEXT_CHUNK_END
        chunk_end = b'},"logprobs":{"content":%b,"refusal":null},"finish_reason":null}]}\n\n' % logprobs
        return chunks + self._text_chunk_start + text + chunk_end

    def _translate_refusal_delta(self, event: _ResponseEvent, _: bytes) -> bytes:
        if not (text := _read_delta(event)):
            return self._begin()
        self._streamed_items.add(event.output_index)
        return self._begin() + self._render_chunk(b'{"refusal":%b}' % text)

    def _translate_reasoning_delta(self, event: _ResponseEvent, _: bytes) -> bytes:
        if not (text := _read_delta(event)):
            return self._begin()
        self._streamed_items.add(event.output_index)
        return self._render_reasoning((event.output_index, event.summary_index, event.content_index), text)

    def _render_reasoning(self, place: tuple[int | None, ...], text: bytes) -> bytes:
        if place != self._reasoning_place:
            text = text if self._reasoning_place is None else _prefix_separator(text)
            self._reasoning_place = place
        return self._begin() + self._render_chunk(b'{"reasoning_content":%b}' % text)

    def _translate_call_delta(self, event: _ResponseEvent, _: bytes) -> bytes:
        # A call whose beginning has not come is translated at its end.
        if (call := self._calls.get(event.output_index)) is None or not (text := _read_delta(event)):
            return b""
        self._streamed_items.add(event.output_index)
        return self._render_chunk(call.build_delta(text))

    def _end_item(self, event: _ResponseEvent, _: bytes) -> bytes:
        return self._translate_ended_item(event.output_index, _decode_object(event.item))

    def _translate_ended_item(self, output_index: int | None, item: Mapping[str, Any]) -> bytes:
        """Translates an item that has ended: all of it if no delta has come, and the citations of a message."""
        kind, is_streamed = item.get("type"), output_index in self._streamed_items
        self._streamed_items.add(output_index)
        chunks = self._begin()
        if kind == "message":
            return chunks + self._translate_ended_message(output_index, _MessageText(item), is_streamed=is_streamed)
        if kind == "reasoning" and not is_streamed:
            for index, text in enumerate(_read_reasoning(item)):
                chunks += self._render_reasoning((output_index, index), _encode_text(text))
        elif is_client_call(item):
            call = _build_call(item)
            if (begun_call := self._find_call(output_index, call["id"])) is None:
                chunks += self._begin_call(output_index, call)
            elif not is_streamed:
                text = call["custom"]["input"] if begun_call.is_custom else call["function"]["arguments"]
                chunks += self._render_chunk(begun_call.build_delta(_encode_text(text)))
        return chunks

    def _translate_ended_message(self, output_index: int | None, message: _MessageText, *, is_streamed: bool) -> bytes:
        chunks = b""
        if message.text and not is_streamed:
            chunks += self._render_text(output_index, _encode_text(message.text))
        if message.refusal and not is_streamed:
            chunks += self._render_chunk(b'{"refusal":%b}' % _encode_text(message.refusal))
        if annotations := message.build_annotations(self._text_length):
            chunks += self._render_chunk(encode_chunk({"annotations": annotations}))
        self._text_length += message.separated_length
        return chunks

    def _end(self, event: _ResponseEvent, _: bytes) -> bytes:
        """Renders the rest of the answer, its finish reason, usage and the end of the stream."""
        response = _decode_object(event.response)
        if "id" not in self._identity:
            self._set_identity(response)
        chunks = b""
        if not self._has_begun:
            # A server that streams nothing but the whole response.
            for index, item in enumerate(_list_objects(response.get("output"))):
                chunks += self._translate_ended_item(index, item)
            chunks += self._begin()
        self._has_ended = True
        status = "incomplete" if event.type == "response.incomplete" else response.get("status")
        reason = _choose_finish_reason({**response, "status": status}, has_calls=bool(self._calls))
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        chunks += b"data: %b\n\n" % encode_chunk({**self._identity, "choices": [choice]})
        if (usage := _translate_usage(response.get("usage"))) is not None:
            chunks += b"data: %b\n\n" % encode_chunk({**self._identity, "choices": [], "usage": usage})
        return chunks + DONE_FRAME

    def _fail(self, event: _ResponseEvent, data: bytes) -> bytes:
        body = decode_chunk(data)
        response = _decode_object(event.response)
        own_fields = {name: body[name] for name in ("code", "message", "param") if name in body}
        return self._render_error(response.get("error") or body.get("error") or own_fields)

    def _render_error(self, error: Any) -> bytes:
        self._has_ended = True
        return b"data: %b\n\n" % encode_chunk(_build_error_body(error, "The response failed."))


def _read_identity_fields(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a completion that name it, as far as the response has them."""
    created_at = response.get("created_at")
    fields = {
        "id": response.get("id"),
        "created": int(created_at) if isinstance(created_at, int | float) and 0 <= created_at < MAX_TIME else None,
        "model": response.get("model"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _decode_event_data(data: bytes) -> _ResponseEvent:
    """Decodes the data of an event.

    Raises:
        msgspec.ValidationError: a field has another type than it must have.
        UpstreamUnavailable: the data is not JSON.
    """
    try:
        return _decode_event(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        # Half of a surrogate pair, which some servers send in a delta of its own; or no JSON at all.
        body = decode_chunk(data)
    if not isinstance(body, dict):
        raise UpstreamUnavailable("A stream event is not a JSON object.")
    fields = {name: body[name] for name in _ResponseEvent.__struct_fields__ if name in body}
    raw_fields = {name: msgspec.Raw(json.dumps(fields[name]).encode()) for name in _RAW_FIELDS & fields.keys()}
    return msgspec.convert({**fields, **raw_fields}, _ResponseEvent)


def _decode_object(raw: msgspec.Raw) -> Mapping[str, Any]:
    """Returns the decoded object of a field; an empty one if the field has another value."""
    text = bytes(raw)
    return decode_chunk(text) if text[:1] == b"{" else {}


def _read_delta(event: _ResponseEvent) -> bytes:
    """Returns the JSON text of an event's delta; nothing if the delta is empty or not a text."""
    delta = bytes(event.delta)
    return delta if delta[:1] == b'"' and len(delta) > len(b'""') else b""


def _prefix_separator(raw_text: bytes) -> bytes:
    return _RAW_SEPARATOR + raw_text[1:]


def _encode_text(text: str) -> bytes:
    """Encodes a text that may hold halves of a surrogate pair."""
    try:
        return orjson.dumps(text)
    except TypeError:
        return json.dumps(text).encode()


def _render_data(data: bytes) -> bytes:
    """Renders data after `data: `, which may have several lines."""
    return data.replace(b"\n", b"\ndata: ") if b"\n" in data else data
