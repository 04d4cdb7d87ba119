"""Attachments of messages of both protocols, as people read them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.dialects.body.attachments import describe_attachments
from app.dialects.item_decoding import decode_item

DATA = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("part", "description"),
    [
        ({"type": "input_image", "image_url": DATA, "detail": "auto"}, ("image", "data:image/png")),
        ({"type": "input_image", "file_id": "file_1"}, ("image", "file_1")),
        ({"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"}, ("file", "a.pdf")),
        ({"type": "input_file", "file_url": "https://example.org/a.pdf"}, ("file", "https://example.org/a.pdf")),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, ("audio", "wav")),
    ],
)
def test_each_attachment_of_items_is_described(part: dict[str, Any], description: tuple[str, str]) -> None:
    for item in (
        {"role": "user", "content": [{"type": "input_text", "text": "Look."}, part]},
        {"type": "function_call_output", "call_id": "c", "output": [part]},
    ):
        message = decode_item(orjson.dumps([item]))
        assert [(one["type"], one["detail"]) for one in describe_attachments(message)] == [description]
