"""How requests are written for providers of the Messages API, and how their answers are read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, Literal

import orjson

from app.conversation.item import Item
from app.dialects.cache_marks import NO_CACHE_MARKS, TOOLS_INDEX, CacheMarks
from app.dialects.item_decoding import is_messages_text
from app.dialects.messages.cache_marks import mark_tools
from app.dialects.messages.context_edits import drop_thinking_edits
from app.dialects.messages.message_rendering import (
    CACHE_MARK,
    MAX_CACHE_MARKS,
    render_messages_for_anthropic,
)
from app.dialects.messages.request_fields import (
    count_marks_beside_messages,
    select_own_fields,
    translate_chat_fields_to_messages,
)
from app.dialects.messages.stream_decoder import MessagesStreamDecoder
from app.dialects.provider_dialect import ProviderDialect, RenderedMessages, SelectedFields
from app.dialects.request_body import decode_field, remove_own_metadata
from app.dialects.sealed_parts import find_loop_answer, restore_thinking
from app.errors import UpstreamUnavailable

MIN_THINKING_TOKENS: Final = 1024
"""The least `budget_tokens` that the API takes; it must be less than `max_tokens`."""
DROPPED_THINKING: Final = {"prefix_mismatch_behavior": "drop_block"}
THINKING_WARNING: Final = (
    "The model does not think in this answer: the provider asks for the thinking of the open tool loop, and it is not "
    "known."
)


class MessagesProviderDialect(ProviderDialect):
    protocol = "anthropic"
    client_protocol = "messages"
    messages_field = "messages"
    forwards_query = True
    make_decoder = MessagesStreamDecoder

    def find_answer_start(self, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
        # A stream that begins with `message_start` may still report that the prompt is too long.
        decoder = MessagesStreamDecoder()
        try:
            kind = decoder.watch(data.strip(), name).type
        except UpstreamUnavailable:
            return data
        if decoder.error_data is not None or not kind:
            return data
        return None if kind in ("message_start", "ping") else True

    def select_fields(self, client: str, fields: Mapping[str, bytes], *, keeps_metadata: bool = True) -> SelectedFields:
        if client == self.client_protocol:
            return SelectedFields(select_own_fields(fields), keeps_messages=True)
        return translate_chat_fields_to_messages(remove_own_metadata(dict(fields), keeps_metadata=keeps_metadata))

    def render_messages(
        self,
        raws: Sequence[bytes],
        own_contents: Set[str] | None,
        fields: Mapping[str, bytes] | None = None,
        *,
        is_edited: bool = False,
        cache_marks: CacheMarks = NO_CACHE_MARKS,
    ) -> RenderedMessages:
        fields = fields or {}
        thinking: Any = decode_field(fields, "thinking")
        is_thinking = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        # Without this option, which is a part of `thinking`, thinking behind an edited prefix is refused.
        seals = frozenset[str]() if is_edited and not is_thinking else own_contents
        marks = MAX_CACHE_MARKS - count_marks_beside_messages(fields)
        rendered = render_messages_for_anthropic(
            raws, own_seals=seals, keeps_thinking=not is_edited, cache_marks=marks, own_marks=cache_marks
        )
        if is_thinking and thinking.get("type") == "enabled" and rendered.lacks_loop_thinking:
            others = {name: raw for name, raw in fields.items() if name != "thinking"}
            bare = self.render_messages(raws, own_contents, others, is_edited=is_edited, cache_marks=cache_marks)
            without: dict[str, bytes | None] = {**bare.fields, "thinking": None, **drop_thinking_edits(fields)}
            return RenderedMessages(bare.messages, without, [*bare.warnings, THINKING_WARNING])
        changed: dict[str, bytes | None] = {"system": rendered.system}
        if TOOLS_INDEX in cache_marks and "tools" in fields:
            changed["tools"] = mark_tools(bytes(fields["tools"]), cache_marks[TOOLS_INDEX])
        if is_thinking and is_edited and rendered.has_loop_thinking:
            changed["thinking"] = orjson.dumps({**thinking, "block_binding": DROPPED_THINKING})
        return RenderedMessages(rendered.raw_messages, changed, rendered.warnings)

    def has_cache_marks(self, fields: Mapping[str, bytes], raws: Sequence[bytes]) -> bool:
        return count_marks_beside_messages(fields) > 0 or any(
            is_messages_text(raw) and CACHE_MARK in raw for raw in raws
        )

    def find_bare_answer(self, client: str, raws: Sequence[bytes]) -> int | None:
        return None if client == self.client_protocol else find_loop_answer(raws)

    def restore_answers(self, raws: Sequence[bytes], stored: Sequence[Item]) -> list[bytes]:
        return restore_thinking(raws, stored)

    def lower_output_limit(self, fields: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        wanted = decode_field(fields, "max_tokens")
        if wanted is not None and wanted <= limit:
            return {}
        lowered = {"max_tokens": b"%d" % limit}
        match decode_field(fields, "thinking"):
            # Thinking gets less than the answer.
            case {"budget_tokens": int(budget)} as thinking if budget >= limit:
                is_possible = limit > MIN_THINKING_TOKENS
                smaller = {**thinking, "budget_tokens": limit - 1} if is_possible else {"type": "disabled"}
                lowered["thinking"] = orjson.dumps(smaller)
                lowered |= {} if is_possible else drop_thinking_edits(fields)
        return lowered
