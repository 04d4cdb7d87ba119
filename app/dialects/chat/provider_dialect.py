"""How requests are written for providers of Chat Completions, and how their answers are read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal

import orjson

from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMarks
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.message_rendering import render_messages_for_chat
from app.dialects.provider_dialect import ProviderDialect, RenderedMessages, SelectedFields
from app.dialects.request_body import decode_field, remove_own_metadata
from app.dialects.request_translation import GATEWAY_FIELDS, OUTPUT_LIMIT_FIELDS

ANSWER_KEY: Final = b'"choices"'
"""Data with this key is an answer, not an error, even if its text speaks of context windows."""


class ChatProviderDialect(ProviderDialect):
    protocol = "openai"
    client_protocol = "chat"
    messages_field = "messages"
    make_decoder = ChatStreamDecoder

    def find_answer_start(self, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
        if not data.strip():
            return None
        return True if ANSWER_KEY in data else data

    def select_fields(self, client: str, fields: Mapping[str, bytes], *, keeps_metadata: bool = True) -> SelectedFields:
        selected = {name: raw for name, raw in fields.items() if name not in GATEWAY_FIELDS and name != "store"}
        has_messages = self.messages_field in fields
        return SelectedFields(remove_own_metadata(selected, keeps_metadata=keeps_metadata), keeps_messages=has_messages)

    def render_messages(
        self,
        raws: Sequence[bytes],
        own_contents: Set[str] | None,
        fields: Mapping[str, bytes] | None = None,
        *,
        is_edited: bool = False,
        cache_marks: CacheMarks = NO_CACHE_MARKS,
    ) -> RenderedMessages:
        messages, warnings = render_messages_for_chat(raws, cache_marks)
        return RenderedMessages(messages, warnings=warnings)

    def ask_for_usage(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        options = {**(decode_field(fields, "stream_options") or {}), "include_usage": True}
        return {"stream_options": orjson.dumps(options)}

    def lower_output_limit(self, fields: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        values = {name: value for name in OUTPUT_LIMIT_FIELDS if (value := decode_field(fields, name)) is not None}
        # Some servers read 0 or a negative limit as "no limit".
        too_high = [name for name, value in values.items() if value > limit or value <= 0]
        return dict.fromkeys(too_high if values else ["max_tokens"], b"%d" % limit)
