"""Operations that shorten a chat message: which there are, and how each is done. Pure.

A view is rendered anew for each request. The store keeps the operations that shortened a message, not its short text,
so the same operations must always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from app.conversation.item import EditOperation
from app.dialects.body.message_fields import REASONING_FIELDS, extract_text, is_reasoning_part
from app.dialects.text_truncation import (
    DEFAULT_HEAD_SHARE,
    truncate_arguments,
    truncate_arguments_by_share,
    truncate_long_text,
    truncate_text,
)

MessageBody = dict[str, Any]
Unit = TypeVar("Unit")
Message = TypeVar("Message")
"""The body, the items or the blocks of a message."""


def apply_operations(
    table: Mapping[str, Callable[..., Message]], message: Message, operations: Sequence[EditOperation]
) -> Message:
    """Returns a copy of a message with operations applied. The same operations always give the same message.

    Args:
        table: the operations of the message's protocol, by name.
    """
    for name, *arguments in operations:
        message = table[str(name)](message, *arguments)
    return message


def build_argument_operations(
    change_arguments: Callable[[Message, Callable[[str], str]], Message],
) -> dict[str, Callable[..., Message]]:
    """Builds the operations on the arguments of calls: `arguments` keeps about a number of characters of those of each
    call, which remain a JSON object; `inputs` replaces them by an empty object.

    Args:
        change_arguments: changes the arguments of each call.
    """

    def shorten(message: Message, chars: int) -> Message:
        return change_arguments(message, lambda arguments: truncate_arguments(arguments, chars))

    return {"arguments": shorten, "inputs": lambda message: change_arguments(message, lambda _: "{}")}


def _shorten_content(body: MessageBody, chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> MessageBody:
    """Keeps about `chars` characters of the content, `head_share` of them from its beginning."""
    return {**body, "content": truncate_content(body.get("content"), chars, head_share)}


def _replace_content(body: MessageBody, text: str) -> MessageBody:
    """Replaces the content by a short text."""
    return {**body, "content": text}


def _remove_reasoning(body: MessageBody) -> MessageBody:
    """Removes reasoning."""
    kept = {name: value for name, value in body.items() if name not in REASONING_FIELDS}
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [part for part in content if not is_reasoning_part(part)]
    return kept


def _change_call_arguments(
    body: MessageBody, change: Callable[[str], str], change_input: Callable[[str], str] | None = None
) -> MessageBody:
    """Changes the arguments of each call, and with `change_input` the input of each call of a custom tool."""
    copy = dict(body)
    if isinstance(body.get("tool_calls"), list):
        copy["tool_calls"] = [_change_tool_call(call, change, change_input) for call in body["tool_calls"]]
    if isinstance(body.get("function_call"), dict):
        copy["function_call"] = _change_function_arguments(body["function_call"], change)
    return copy


def _change_tool_call(call: object, change: Callable[[str], str], change_input: Callable[[str], str] | None) -> object:
    if not isinstance(call, dict):
        return call
    copy, custom = dict(call), call.get("custom")
    if isinstance(call.get("function"), dict):
        copy["function"] = _change_function_arguments(call["function"], change)
    if change_input is not None and isinstance(custom, dict) and isinstance(custom.get("input"), str):
        copy["custom"] = {**custom, "input": change_input(custom["input"])}
    return copy


def _change_function_arguments(function: MessageBody, change: Callable[[str], str]) -> MessageBody:
    arguments = function.get("arguments")
    return {**function, "arguments": change(arguments)} if isinstance(arguments, str) else function


def truncate_content(content: object, chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> object:
    """Returns a content whose texts together keep about `chars` characters; long texts are cut in proportion."""
    if isinstance(content, str):
        return truncate_text(content, chars, head_share)
    length = len(extract_text(content))
    return content if length <= chars else truncate_content_by_share(content, chars / length, head_share)


def shorten_contents(
    units: Sequence[Unit],
    contents: Sequence[object],
    chars: int,
    head_share: float,
    change: Callable[[Unit, Callable[[object], object]], Unit],
) -> list[Unit]:
    """Returns the items or blocks of a message, whose contents together keep about `chars` characters.

    Args:
        contents: the content of each unit.
        change: returns a unit with another content.
    """
    lengths = [len(extract_text(content)) for content in contents]
    length = sum(lengths)
    if length <= chars:
        return list(units)
    if sum(map(bool, lengths)) == 1:
        return [
            change(unit, lambda content: truncate_content(content, chars, head_share)) if own else unit
            for unit, own in zip(units, lengths, strict=True)
        ]
    share = chars / length
    return [change(unit, lambda content: truncate_content_by_share(content, share, head_share)) for unit in units]


def truncate_message_texts(body: MessageBody, share: float) -> MessageBody:
    """Returns a copy of a message whose long texts keep `share` of their characters."""
    copy = _change_call_arguments(
        body, lambda text: truncate_arguments_by_share(text, share), lambda text: truncate_long_text(text, share)
    )
    if "content" in body:
        copy["content"] = truncate_content_by_share(body["content"], share)
    return copy


def truncate_content_by_share(content: object, share: float, head_share: float = DEFAULT_HEAD_SHARE) -> object:
    """Returns a content whose long texts keep `share` of their characters."""
    if isinstance(content, str):
        return truncate_long_text(content, share, head_share)
    if isinstance(content, list):
        return [_truncate_part(part, share, head_share) for part in content]
    return content


def _truncate_part(part: object, share: float, head_share: float) -> object:
    if isinstance(part, str):
        return truncate_long_text(part, share, head_share)
    if isinstance(part, dict):
        return {
            key: truncate_long_text(value, share, head_share)
            if key in ("text", "refusal") and isinstance(value, str)
            else value
            for key, value in part.items()
        }
    return part


OPERATIONS: Final[Mapping[str, Callable[..., MessageBody]]] = {
    "shorten": truncate_message_texts,
    "contents": _shorten_content,
    "say": _replace_content,
    "thoughtless": _remove_reasoning,
    **build_argument_operations(_change_call_arguments),
}
"""The names are stored with conversations: an operation keeps its name."""
