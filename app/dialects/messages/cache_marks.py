"""Writes cache marks as the Messages API has them: `cache_control` in tools and blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from app.dialects.cache_marks import CacheMark, split_text
from app.dialects.messages.message_body import THINKING_TYPES

CACHE_CONTROL: Final = {"type": "ephemeral"}


def mark_last_block(raw_blocks: Sequence[bytes], mark: CacheMark) -> list[bytes]:
    """Returns blocks, or tools, with a mark in the last one that may have it; the same if there is none. A single text
    is cut as the mark says."""
    marked = list(raw_blocks)
    for place in reversed(range(len(marked))):
        block = orjson.loads(marked[place])
        if not isinstance(block, dict) or block.get("type") in THINKING_TYPES:
            continue
        pieces = split_text(block["text"], mark) if block.get("type") == "text" else []
        blocks = [{**block, "text": text} for text in pieces] or [block]
        blocks[-1]["cache_control"] = CACHE_CONTROL
        return [*marked[:place], *map(orjson.dumps, blocks), *marked[place + 1 :]]
    return marked


def mark_tools(raw_tools: bytes, mark: CacheMark) -> bytes:
    """Returns the JSON text of a list of tools with a mark in the last one; the same text if it is no list."""
    tools = orjson.loads(raw_tools)
    return b"[" + b",".join(mark_last_block([orjson.dumps(one) for one in tools], mark)) + b"]" if tools else raw_tools
