"""Writes the answers of `POST /v1/responses/compact`."""

from __future__ import annotations

from typing import Any

import orjson

from app.dialects.answer_format import NewCompaction
from app.dialects.chat.stream_frames import splice_fields
from app.dialects.item_decoding import decode_item, is_instructions_field
from app.dialects.items.item_ids import derive_item_id
from app.dialects.items.listed_items import build_input_items
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import render_messages_for_responses
from app.dialects.responses.answer_format import ResponsesAnswerFormat
from app.dialects.responses.response_object import build_response_usage


class CompactionAnswerFormat(ResponsesAnswerFormat):
    """Writes a compaction as an object: what was said word for word, then the capsule."""

    def render_whole_compaction(self, compaction: NewCompaction, fields: bytes) -> bytes:
        response = self._lifecycle.response
        self._lifecycle.set_compaction(compaction.capsule)
        items = [item for raw in compaction.said for item in _build_items(raw)]
        named = [
            {"id": derive_item_id(response.response_id, "msg", index), **item} for index, item in enumerate(items, 1)
        ]
        body = {
            "id": response.response_id,
            "object": "response.compaction",
            "created_at": response.created_at,
            "output": [*named, *self._lifecycle.first_items],
            "usage": build_response_usage(compaction.usage),
        }
        return splice_fields(orjson.dumps(body), fields)


def _build_items(raw: bytes) -> list[dict[str, Any]]:
    """Returns the items of a message; none for the `instructions` of a request, which hold for it alone."""
    if is_instructions_field(raw):
        return []
    message = decode_item(raw)
    if isinstance(message, ResponsesMessage):
        return build_input_items(message)
    return [orjson.loads(item) for item in render_messages_for_responses([raw]).messages]
