"""How requests are written for providers of the Responses API, and how their answers are read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal

from app.conversation.item import Item
from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMarks
from app.dialects.message_rendering import needs_rendering_for_responses, render_messages_for_responses
from app.dialects.provider_dialect import ProviderDialect, RenderedMessages, SelectedFields
from app.dialects.reasoning_restoration import find_bare_reasoning, restore_reasoning
from app.dialects.request_body import decode_field, remove_own_metadata
from app.dialects.request_translation import (
    MIN_OUTPUT_TOKENS,
    select_fields_for_responses,
    translate_fields_to_responses,
)
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.errors import UpstreamUnavailable


class ResponsesProviderDialect(ProviderDialect):
    protocol = client_protocol = "responses"
    messages_field = "input"
    make_decoder = ResponsesStreamDecoder

    def find_answer_start(self, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
        # A stream that begins with `response.created` may still report that the prompt is too long.
        decoder = ResponsesStreamDecoder()
        try:
            values = decoder.decode(data.strip(), name)
        except UpstreamUnavailable:
            return data
        return decoder.error_data or (True if values else None)

    def select_fields(self, client: str, fields: Mapping[str, bytes], *, keeps_metadata: bool = True) -> SelectedFields:
        if client != self.client_protocol:
            return translate_fields_to_responses(remove_own_metadata(dict(fields), keeps_metadata=keeps_metadata))
        selected = select_fields_for_responses(fields)
        input_json = bytes(fields.get("input", b""))
        if not input_json or needs_rendering_for_responses(input_json):
            return SelectedFields(selected)
        selected |= {name: bytes(fields[name]) for name in ("instructions", "input") if name in fields}
        return SelectedFields(selected, keeps_messages=True)

    def render_messages(
        self,
        raws: Sequence[bytes],
        own_contents: Set[str] | None,
        fields: Mapping[str, bytes] | None = None,
        *,
        is_edited: bool = False,
        cache_marks: CacheMarks = NO_CACHE_MARKS,
    ) -> RenderedMessages:
        return render_messages_for_responses(raws, own_contents=own_contents, cache_marks=cache_marks)

    def find_bare_answer(self, client: str, raws: Sequence[bytes]) -> int | None:
        return find_bare_reasoning(raws)

    def restore_answers(self, raws: Sequence[bytes], stored: Sequence[Item]) -> list[bytes]:
        return restore_reasoning(raws, [answer.raw for answer in stored])

    def lower_output_limit(self, fields: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        lowered, wanted = max(limit, MIN_OUTPUT_TOKENS), decode_field(fields, "max_output_tokens")
        return {"max_output_tokens": b"%d" % lowered} if wanted is None or wanted > lowered else {}
