"""Writes cache marks as the Messages API has them: `cache_control` in tools and blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from app.dialects.cache_marks import CacheMark, add_member, split_text
from app.dialects.messages.message_body import THINKING_TYPES

CACHE_CONTROL: Final = b'"cache_control":{"type":"ephemeral"}'
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def mark_last_block(raw_blocks: Sequence[bytes], mark: CacheMark) -> list[bytes]:
    """Returns blocks, or tools, with a mark in the last one that may have it; the same if there is none. A single text
    is cut as the mark says."""
    marked = list(raw_blocks)
    for place in reversed(range(len(marked))):
        block = orjson.loads(marked[place])
        if not isinstance(block, dict) or not block or block.get("type") in THINKING_TYPES:
            continue
        pieces = [marked[place]]
        if mark.text_ends and isinstance(block.get("text"), str):
            pieces = [orjson.dumps({**block, "text": text}) for text in split_text(block["text"], mark)]
        return [*marked[:place], *pieces[:-1], add_member(pieces[-1], CACHE_CONTROL), *marked[place + 1 :]]
    return marked


def mark_tools(raw_tools: bytes, mark: CacheMark) -> bytes:
    """Returns the JSON text of a list of tools with a mark in the last one; the same text if it is no list."""
    tools = [bytes(one) for one in _decode_array(raw_tools)] if raw_tools[:1] == b"[" else []
    return b"[" + b",".join(mark_last_block(tools, mark)) + b"]" if tools else raw_tools
