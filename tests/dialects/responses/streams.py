"""Runs answer formats on scripted streams, as the pipeline does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.item import Item
from app.dialects.answer_decoding import drop_cut_events
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.responses.answer_format import ResponsesAnswerFormat
from app.dialects.sse import SseDecoder
from app.dialects.stream_relay import RelayOptions
from app.errors import GatewayError, UpstreamUnavailable

RESPONSE_ID: Final = "resp_" + "0123456789abcdef" * 3
CREATED_AT: Final = 1_700_000_000
STATUS_FIELDS: Final = b'"context_status":"full","conversation_id":"conv_1"'
ALL_FIELDS: Final = STATUS_FIELDS + b',"context":{"policy":"additive"}'
DONE: Final = b"data: [DONE]\n\n"


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: %b\n\n" % orjson.dumps({"id": "chatcmpl-1", "model": "provider-model", "choices": [choice], **more})


def raw_text_chunk(json_string: bytes) -> bytes:
    """A chunk with a text in its JSON spelling, which may hold half of a surrogate pair."""
    return b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json_string


def call_chunk(index: int, arguments: str = "", **more: Any) -> bytes:
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return chunk({"tool_calls": [{"index": index, "function": function, **more}]})


def usage_chunk() -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16, **details}
    return b"data: %b\n\n" % orjson.dumps({"id": "chatcmpl-1", "choices": [], "usage": usage})


def make_format(**fields: object) -> ResponsesAnswerFormat:
    raw_fields = {name: orjson.dumps(value) for name, value in ({"model": "asked-model"} | fields).items()}
    return ResponsesAnswerFormat(RESPONSE_ID, CREATED_AT, raw_fields)


class RelayedStream:
    """What came of one stream.

    Attributes:
        frames: all bytes for the client.
        message: what the log keeps; None if nothing came that could be kept.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        answer_format: ResponsesAnswerFormat | None = None,
        broken_by: UpstreamUnavailable | None = None,
        store_failure: GatewayError | None = None,
        changed_fields: bytes | None = None,
        protocol: str = "openai",
    ) -> None:
        answer_format = answer_format or make_format()
        options = RelayOptions(STATUS_FIELDS, lambda _: ALL_FIELDS, "upstream")
        self.relay = answer_format.build_relay(PROVIDER_DIALECTS[protocol].make_decoder("upstream"), options)
        relay = self.relay
        frames: list[bytes] = []
        sse_decoder = SseDecoder("upstream")
        frames += [relay.relay_events(sse_decoder.feed(piece)) for piece in pieces if not relay.has_ended]
        if not relay.has_ended and broken_by is None:
            frames.append(relay.relay_events(drop_cut_events(sse_decoder.flush(), protocol)))
        relay.record_stream_end(broken_by)
        answer = relay.answer
        self.message: Item | None = None
        if answer.has_content or (answer.is_complete and relay.stream_failure is None):
            self.message = relay.build_answer_message()
        error = store_failure or relay.stream_failure
        frames.append(relay.render_end(changed_fields) if error is None else answer_format.render_error_frames(error))
        self.frames = b"".join(frames)
