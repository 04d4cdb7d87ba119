"""Applies the operations that shorten a message to blocks of the Messages API. Pure.

The operations are those of `app.dialects.body.message_edits`, and do to blocks what they do to the chat form. A block
that an operation does not change stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from app.conversation.item import EditOperation
from app.conversation.json_text import encode_compact_json
from app.dialects.body.message_edits import shorten_contents, truncate_content_by_share
from app.dialects.messages.message_body import THINKING_TYPES, Block, list_blocks
from app.dialects.text_truncation import (
    DEFAULT_HEAD_SHARE,
    SHORT_TEXT_CHARS,
    truncate_arguments,
    truncate_arguments_by_share,
)


def apply_operations_to_blocks(blocks: Sequence[Block], operations: Sequence[EditOperation]) -> list[Block]:
    """Returns the blocks with operations applied. The same operations always give the same blocks."""
    edited = list(blocks)
    for name, *arguments in operations:
        edited = OPERATIONS[str(name)](edited, *arguments)
    return edited


def _shorten_texts(blocks: list[Block], share: float) -> list[Block]:
    """Keeps a share of the characters of each long text."""

    def change(text: str) -> str:
        return text if len(text) <= SHORT_TEXT_CHARS else truncate_arguments_by_share(text, share)

    shorter = _change_inputs(blocks, change)
    return [_change_content(block, lambda content: truncate_content_by_share(content, share)) for block in shorter]


def _shorten_content(blocks: list[Block], chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> list[Block]:
    """Keeps about `chars` characters of the texts together, `head_share` of them from the beginning of each."""
    contents = [list_blocks(_read_content(block)) for block in blocks]
    return shorten_contents(blocks, contents, chars, head_share, _change_content)


def _shorten_inputs(blocks: list[Block], chars: int) -> list[Block]:
    """Keeps about `chars` characters of the input of each call."""
    return _change_inputs(blocks, lambda text: truncate_arguments(text, chars))


def _clear_inputs(blocks: list[Block]) -> list[Block]:
    """Replaces the input of each call by an empty object."""
    return _change_inputs(blocks, lambda _: "{}")


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
    "arguments": _shorten_inputs,
    "say": _replace_content,
    "inputs": _clear_inputs,
    "thoughtless": _remove_thinking,
}
"""The names are those of `message_edits.OPERATIONS`: they are stored with conversations."""
