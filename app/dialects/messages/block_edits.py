"""Applies the operations that shorten a message to blocks of the Messages API. Pure.

The operations are those of `app.dialects.body.message_edits`, and do to blocks what they do to the chat form. A block
that an operation does not change stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from app.conversation.json_text import encode_compact_json
from app.dialects.body.message_edits import build_argument_operations, shorten_contents, truncate_content_by_share
from app.dialects.messages.message_body import THINKING_TYPES, Block, list_blocks
from app.dialects.text_truncation import DEFAULT_HEAD_SHARE, truncate_arguments_by_share


def _shorten_texts(blocks: list[Block], share: float) -> list[Block]:
    """Keeps a share of the characters of each long text."""
    shorter = _change_inputs(blocks, lambda text: truncate_arguments_by_share(text, share))
    return [_change_content(block, lambda content: truncate_content_by_share(content, share)) for block in shorter]


def _shorten_content(blocks: list[Block], chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> list[Block]:
    """Keeps about `chars` characters of the texts together, `head_share` of them from the beginning of each."""
    contents = [list_blocks(_read_content(block)) for block in blocks]
    return shorten_contents(blocks, contents, chars, head_share, _change_content)


def _replace_content(blocks: list[Block], text: str) -> list[Block]:
    """Replaces the texts, and what stands among them, by a short text. Thinking and calls stay."""
    if blocks and blocks[0]["type"] == "tool_result":
        return [{**blocks[0], "content": text}]
    thinking = [block for block in blocks if block["type"] in THINKING_TYPES]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return [*thinking, {"type": "text", "text": text}, *calls]


def _remove_thinking(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks without thinking."""
    return [block for block in blocks if block["type"] not in THINKING_TYPES]


def _change_inputs(blocks: Sequence[Block], change: Callable[[str], str]) -> list[Block]:
    return [
        {**block, "input": orjson.loads(change(encode_compact_json(block["input"])))}
        if block["type"] == "tool_use" and isinstance(block.get("input"), dict)
        else block
        for block in blocks
    ]


def _change_content(block: Block, change: Callable[[object], object]) -> Block:
    """Returns a text or a result with another text; any other block as it is."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": change(text)}
        case {"type": "tool_result", "content": content}:
            return {**block, "content": change(content)}
    return block


def _read_content(block: Block) -> object:
    """Returns what of a block an operation on the content shortens."""
    return {"text": block.get("text"), "tool_result": block.get("content")}.get(block["type"])


OPERATIONS: Final[Mapping[str, Callable[..., list[Block]]]] = {
    "shorten": _shorten_texts,
    "contents": _shorten_content,
    "say": _replace_content,
    "thoughtless": _remove_thinking,
    **build_argument_operations(_change_inputs),
}
"""The names are those of `message_edits.OPERATIONS`: they are stored with conversations."""
