"""Applies the operations that shorten a message to Responses items. Pure.

The operations are those of `app.dialects.body.message_edits`, and do to items what they do to the chat form of the
items. An item that an operation does not change keeps its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.dialects.body.message_edits import build_argument_operations, shorten_contents, truncate_content_by_share
from app.dialects.items.chat_form import convert_output
from app.dialects.items.item_kinds import OUTPUT_TYPES, SPOKEN_ROLES, find_message_role, is_client_call, read_type
from app.dialects.text_truncation import DEFAULT_HEAD_SHARE, truncate_arguments_by_share, truncate_long_text

ItemObject = dict[str, Any]
EditedItem = Any
"""An item, or the text of instructions."""
EMPTY_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""An image of one pixel: what stands for a screenshot, where a text is not allowed."""
TYPES_WITHOUT_ID: Final = ("message", "function_call", "custom_tool_call")
"""Items that may be sent without an id. With their id, OpenAI asks for the reasoning that they were stored with."""


def remove_reasoning(items: Sequence[EditedItem]) -> list[EditedItem]:
    """Returns the items without reasoning. The others lose their ids, because a provider that knows the ids asks for
    the reasoning that belongs to them."""
    if not any(map(_is_reasoning, items)):
        return list(items)
    return [strip_id(item) for item in items if not _is_reasoning(item)]


def strip_id(item: EditedItem) -> EditedItem:
    """Returns an item without its id, if it may be sent without one."""
    if not isinstance(item, dict) or read_type(item) not in TYPES_WITHOUT_ID:
        return item
    return {name: value for name, value in item.items() if name != "id"}


def replace_output(item: Mapping[str, Any], text: str) -> ItemObject:
    """Returns the output of a call with a text in the place of what it says."""
    match item:
        case {"type": "computer_call_output"}:
            return {**item, "output": {"type": "computer_screenshot", "image_url": EMPTY_IMAGE}}
        case {"type": "shell_call_output"}:
            outcome = {"type": "exit", "exit_code": 0}
            return {**item, "output": [{"stdout": text, "stderr": "", "outcome": outcome}]}
        case {"type": "mcp_approval_response"}:
            return {name: text if name == "reason" else value for name, value in item.items()}
        case {"type": "tool_search_output"}:
            return {**item, "tools": []}
    return {**item, "output": text}


def _shorten_texts(items: list[EditedItem], share: float) -> list[EditedItem]:
    """Keeps a share of the characters of each long text."""
    return [_shorten_item_texts(item, share) for item in items]


def _shorten_item_texts(item: EditedItem, share: float) -> EditedItem:
    if isinstance(item, str):
        return truncate_long_text(item, share)
    match item:
        case {"type": "function_call", "arguments": str(arguments)}:
            return {**item, "arguments": truncate_arguments_by_share(arguments, share)}
        case {"type": "custom_tool_call", "input": str(text)}:
            return {**item, "input": truncate_long_text(text, share)}
    return _change_contents(item, lambda content: truncate_content_by_share(content, share))


def _shorten_content(items: list[EditedItem], chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> list[EditedItem]:
    """Keeps about `chars` characters of the texts together, `head_share` of them from the beginning of each."""
    return shorten_contents(items, [_read_content(item) for item in items], chars, head_share, _change_contents)


def _change_call_arguments(items: list[EditedItem], change: Callable[[str], str]) -> list[EditedItem]:
    return [
        {**item, "arguments": change(item["arguments"])}
        if isinstance(item, dict) and item.get("type") == "function_call" and isinstance(item.get("arguments"), str)
        else item
        for item in items
    ]


def _replace_content(items: list[EditedItem], text: str) -> list[EditedItem]:
    """Replaces the texts, and what stands among them, by a short text."""
    first = items[0] if items else None
    if isinstance(first, str):
        return [text]
    if isinstance(first, dict) and find_message_role(first) == "tool":
        return [replace_output(first, text)]
    if isinstance(first, dict) and find_message_role(first) in SPOKEN_ROLES:
        return [{"type": "message", "role": first["role"], "content": text}]
    is_kept = [_is_reasoning(item) or (isinstance(item, dict) and is_client_call(item)) for item in items]
    place = next(
        (index for index, kept in enumerate(is_kept) if not kept),
        next((index for index, item in enumerate(items) if not _is_reasoning(item)), len(items)),
    )
    said = {"type": "message", "role": "assistant", "content": text}
    before, after = items[:place], items[place:]
    return [*before, said, *(item for item, kept in zip(after, is_kept[place:], strict=True) if kept)]


def _change_contents(item: EditedItem, change: Callable[[object], object]) -> EditedItem:
    """Returns an item with another content or output; itself if it has neither."""
    if isinstance(item, str):
        return change(item)
    if not isinstance(item, dict):
        return item
    if read_type(item) == "message" and "content" in item:
        return {**item, "content": change(item["content"])}
    if read_type(item) not in OUTPUT_TYPES or "output" not in item:
        return item
    match item:
        case {"type": "shell_call_output", "output": list(pieces)}:
            return {**item, "output": [_change_streams(piece, change) for piece in pieces]}
        case {"type": "computer_call_output"}:
            return item
    return {**item, "output": change(item["output"])}


def _change_streams(piece: object, change: Callable[[object], object]) -> object:
    if not isinstance(piece, dict):
        return piece
    return {name: change(value) if name in ("stdout", "stderr") else value for name, value in piece.items()}


def _read_content(item: EditedItem) -> object:
    """Returns what of an item an operation on the content shortens."""
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return None
    if read_type(item) == "message":
        return item.get("content")
    return convert_output(item) if read_type(item) in OUTPUT_TYPES else None


def _is_reasoning(item: EditedItem) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


OPERATIONS: Final[Mapping[str, Callable[..., list[EditedItem]]]] = {
    "shorten": _shorten_texts,
    "contents": _shorten_content,
    "say": _replace_content,
    "thoughtless": remove_reasoning,
    **build_argument_operations(_change_call_arguments),
}
"""The names are those of `message_edits.OPERATIONS`: they are stored with conversations."""
