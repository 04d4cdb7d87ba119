"""Parses the body and headers of a Responses request into a `ChatRequest`: the gateway's own fields and headers in
`request_options`, the protocol's in `app/dialects/responses/request.py`. Errors name the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.api.request_options import parse_request_options
from app.conversation.conversation_types import RESPONSE_ID_PREFIX
from app.dialects.request_body import decode_body_fields
from app.dialects.responses.answer_format import ResponsesAnswerFormat
from app.dialects.responses.compaction_format import CompactionAnswerFormat
from app.dialects.responses.request import parse_responses_fields
from app.pipeline.turn.chat_request import Caller, ChatRequest, StoringOptions

RANDOM_BYTES: Final = 24
"""A response id has 48 hex digits, as OpenAI's have."""


class ResponsesRequestParser:
    """Parses Responses requests, and gives each response its id.

    Args:
        keeps_context: whether a turn with `store: false` is kept for continuing its conversation.
        now: returns the time of day.
        random_bytes: returns that many random bytes.
    """

    def __init__(
        self, *, keeps_context: bool, now: Callable[[], datetime], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._keeps_context = keeps_context
        self._now = now
        self._random_bytes = random_bytes

    def parse(self, body: bytes, headers: Mapping[str, str], caller: Caller, request_id: str) -> ChatRequest:
        """Parses a Responses request.

        Args:
            body: the raw request body.
            headers: values by lower-case name.

        Raises:
            InvalidRequest: the body or a header is invalid; `param` names the place.
        """
        return self._parse(body, headers, caller, request_id, ResponsesAnswerFormat)

    def parse_compaction(self, body: bytes, headers: Mapping[str, str], caller: Caller, request_id: str) -> ChatRequest:
        """Parses the body of `POST /v1/responses/compact`. Arguments and exceptions as of `parse`."""
        request = self._parse(body, headers, caller, request_id, CompactionAnswerFormat)
        # OpenAI's endpoint stores nothing, and does not say whether the responses before it were stored.
        finds_either = "store" not in request.raw_fields and request.continuation.previous_response_id is None
        return replace(
            request,
            delivery=replace(request.delivery, stream=False),
            compaction=replace(request.compaction, summarize="now", is_alone=True),
            storing=replace(request.storing, finds_either_tenant=finds_either),
        )

    def _parse(
        self,
        body: bytes,
        headers: Mapping[str, str],
        caller: Caller,
        request_id: str,
        answer_format_class: type[ResponsesAnswerFormat],
    ) -> ChatRequest:
        fields = {name: bytes(raw) for name, raw in decode_body_fields(body).items()}
        options = parse_request_options(fields, headers)
        responses = parse_responses_fields(fields)
        is_alone = responses.input_before_trigger is not None
        if responses.input_before_trigger is not None:
            fields["input"] = responses.input_before_trigger
        # A request with `conversation` brings only what is new: its other items are in the conversation.
        context = options.context
        if responses.conversation is not None and context.mode == "auto":
            context = replace(context, mode="append")
        # The client accepts that the oldest items are left out, so it does not wait for a summary.
        compaction = options.compaction
        if is_alone:
            compaction = replace(compaction, summarize="now")
        elif responses.truncation == "auto" and compaction.summarize == "auto":
            compaction = replace(compaction, summarize="never")
        response_id = RESPONSE_ID_PREFIX + self._random_bytes(RANDOM_BYTES).hex()
        answer_format = answer_format_class(
            response_id, int(self._now().timestamp()), fields, lambda: self._now().timestamp()
        )
        keeps_capsule = is_alone or responses.wants_compaction_item or answer_format_class is not ResponsesAnswerFormat
        return ChatRequest(
            caller=caller,
            request_id=request_id,
            body=body,
            raw_fields=fields,
            raw_messages=responses.raw_messages,
            item_groups=responses.item_groups,
            model=responses.model,
            max_output_tokens=responses.max_output_tokens,
            protocol="responses",
            storing=StoringOptions(
                responses.store,
                keeps_context_only=not responses.store and self._keeps_context,
                stores_completion=responses.store,
                may_keep_context=self._keeps_context,
            ),
            continuation=replace(options.continuation, previous_response_id=responses.previous_response_id),
            context=context,
            compaction=replace(
                compaction,
                capsule_format=answer_format if keeps_capsule else None,
                is_alone=is_alone,
                threshold_tokens=responses.compact_threshold,
            ),
            retry=options.retry,
            delivery=replace(options.delivery, stream=responses.stream, answer_format=answer_format),
            forwarded=options.forwarded,
        )
