"""Renders messages as text without a model: one line per text, `user: …`, `assistant: …`, and one line per call,
`name(arguments): result`, `name(arguments): ERROR: …`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import orjson

from app.conversation.item import UNNAMED_TOOL, Item, ToolCall

MAX_ARGUMENT_CHARS = 80
MAX_RESULT_CHARS = 200
MAX_LINE_TEXT_CHARS = 200
"""The most characters of a message's text in its line."""

_ERROR_PATTERN = re.compile(r"^\W*(?:\w+\.)*(?:\w*error|\w*exception|traceback|failed|failure|fatal)\b", re.IGNORECASE)


def render_text_line(message: Item) -> str | None:
    """Returns the line of what a message says, without its calls; None if it says nothing."""
    text = truncate_to_one_line(message.transcript_text, MAX_LINE_TEXT_CHARS)
    return f"{message.role or 'user'}: {text}" if text else None


def render_tool_round(messages: Sequence[Item], result_chars: int) -> str:
    """Returns the text of an assistant message, then one line per call with its result."""
    first, *results = messages
    return "\n".join([*filter(None, [first.text.strip()]), *render_tool_call_lines(first, results, result_chars)])


def render_tool_call_lines(
    message: Item, results: Sequence[Item], result_chars: int = MAX_RESULT_CHARS
) -> Iterator[str]:
    """Yields a line for each call of a message, with its result: by id, else by position in the round."""
    left = list(results)
    for call in message.calls:
        result = _take_call_result(call, left)
        excerpt = "no result" if result is None else render_result_excerpt(result.text, result_chars)
        yield f"{call.name or UNNAMED_TOOL}({truncate_to_one_line(call.arguments, MAX_ARGUMENT_CHARS)}): {excerpt}"


def render_result_excerpt(text: str, chars: int = MAX_RESULT_CHARS) -> str:
    """Returns the beginning of a result, marked if it reports an error."""
    excerpt = truncate_to_one_line(text, chars)
    return f"ERROR: {excerpt}" if is_error_result(text) and not excerpt.startswith("ERROR") else excerpt


def is_error_result(text: str) -> bool:
    """Says whether a result reads like an error, or is a JSON object that reports one."""
    if _ERROR_PATTERN.match(text.lstrip()):
        return True
    if not text.lstrip().startswith("{"):
        return False
    try:
        decoded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(decoded, dict) and bool(decoded.get("error") or decoded.get("is_error"))


def truncate_to_one_line(text: str, chars: int) -> str:
    """Returns a text on one line, cut if it is longer than `chars`."""
    # Eight times the result's length is read: a text with much white space still fills the line, and a huge one costs
    # little.
    flat = " ".join(text[: 8 * chars].split())
    return flat if len(flat) <= chars else flat[: chars - 1] + "…"


def _take_call_result(call: ToolCall, results: list[Item]) -> Item | None:
    index = next((index for index, result in enumerate(results) if result.result_for == call.id), 0)
    return results.pop(index) if results else None
