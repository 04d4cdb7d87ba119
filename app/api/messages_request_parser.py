"""Parses the body and headers of a Messages request into a `ChatRequest`: the gateway's own fields and headers in
`request_options`, the protocol's in `app/dialects/messages/request.py`. Errors name the place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from app.api.request_options import parse_request_options
from app.dialects.messages.answer_format import MessagesAnswerFormat
from app.dialects.messages.compaction import COMPACTION_FIELD, read_requested_compaction
from app.dialects.messages.request import parse_messages_fields
from app.dialects.request_body import decode_body_fields
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import Caller, ChatRequest, CompactionOptions


def parse_messages_request(
    body: bytes, headers: Mapping[str, str], caller: Caller, request_id: str, *, needs_limit: bool = True
) -> ChatRequest:
    """Parses a Messages request. Arguments and errors are those of `parse_chat_request`.

    Args:
        needs_limit: whether `max_tokens` is required: not by a request of which only the tokens are counted.
    """
    fields = {name: bytes(raw) for name, raw in decode_body_fields(body).items()}
    if not needs_limit:
        fields.pop(COMPACTION_FIELD, None)  # the count is that of the messages as sent
    options = parse_request_options(fields, headers)
    messages = parse_messages_fields(
        fields, may_begin_with_result=options.continuation.conversation_id is not None, needs_limit=needs_limit
    )
    requested = None
    with suppress(InvalidRequest):  # which the gateway raises if the provider does not compact itself
        requested = read_requested_compaction(fields)
    is_alone = requested is not None and requested.threshold_tokens is None
    answer_format = MessagesAnswerFormat(request_id, messages.model, signs_compaction=is_alone)
    compaction = options.compaction
    if requested is not None:
        compaction = CompactionOptions(
            "now" if is_alone else compaction.summarize,
            instructions=requested.instructions or compaction.instructions,
            threshold_tokens=requested.threshold_tokens,
            capsule_format=answer_format,
            is_alone=is_alone,
            pauses=requested.pauses,
        )
    return ChatRequest(
        caller=caller,
        request_id=request_id,
        body=body,
        raw_fields=fields,
        raw_messages=messages.raw_messages,
        item_groups=messages.message_indexes,
        model=messages.model,
        max_output_tokens=messages.max_output_tokens,
        protocol="messages",
        continuation=options.continuation,
        context=options.context,
        compaction=compaction,
        retry=options.retry,
        delivery=replace(options.delivery, stream=messages.stream, answer_format=answer_format),
        forwarded=options.forwarded,
    )
