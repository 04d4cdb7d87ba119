"""Parses the body and headers of a chat completion request into a `ChatRequest`: the gateway's own fields and headers
in `request_options`, the protocol's in `app/dialects/chat/request.py`. Errors name the field."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from app.api.request_options import parse_request_options
from app.dialects.chat.request import parse_chat_fields
from app.dialects.request_body import decode_body_fields
from app.pipeline.turn.chat_request import Caller, ChatRequest, StoringOptions


def parse_chat_request(body: bytes, headers: Mapping[str, str], caller: Caller, request_id: str) -> ChatRequest:
    """Parses a chat completion request.

    Args:
        body: the raw request body.
        headers: values by lower-case name.

    Raises:
        InvalidRequest: the body or a header is invalid; `param` names the place.
    """
    fields = decode_body_fields(body)
    options = parse_request_options(fields, headers)
    chat = parse_chat_fields(fields)
    return ChatRequest(
        caller=caller,
        request_id=request_id,
        body=body,
        raw_fields=fields,
        raw_messages=chat.raw_messages,
        model=chat.model,
        choice_count=chat.choice_count,
        max_output_tokens=chat.max_output_tokens,
        storing=StoringOptions(chat.store is not False, stores_completion=chat.store is True),
        continuation=options.continuation,
        context=options.context,
        compaction=options.compaction,
        retry=options.retry,
        delivery=replace(options.delivery, stream=chat.stream, wants_usage=chat.wants_usage),
        forwarded=options.forwarded,
    )
