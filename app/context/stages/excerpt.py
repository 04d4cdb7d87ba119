"""A long message in fewer characters: head and tail of its texts, a line that says how much is missing between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from app.conversation.json_depth import is_too_deep
from app.conversation.messages import text_of

HEAD_SHARE = 0.7
NEWLINE_REACH_SHARE = 0.2
"""A cut moves to a newline that is within this share of the piece it belongs to."""
SHORT_TEXT_CHARS = 64
"""Texts up to this length (names, numbers, paths) stay whole while longer ones can give."""
LEAST_ARGUMENTS_SHARE = 0.1
"""Arguments that must go below this are many short values, and left out as a whole."""
FIRST_TRY = 0.95
"""Of what a cap allows: text is not equally dense everywhere, and the line that says what is missing takes some."""
SHRINK = 0.7
TRIES = 16
WELL_FILLED = 0.95
"""A message that takes this share of its cap is good enough …"""
ENOUGH_TRIES = 3
"""… and so is any that fits after so many tries more."""
CAUTION = 0.985
MOST_GROWTH = 1.5
"""Of the share, from one try to the next: some texts do not get longer with it."""


def share_within(
    body: dict[str, Any], tokens: int, cap_tokens: int, count: Callable[[dict[str, Any]], int]
) -> tuple[float, int]:
    """The share of its texts that a message may keep to take at most `cap_tokens`, and what it takes then; the smallest
    tried if none is small enough.

    Args:
        tokens: what the message takes whole.
        count: tokens of a message.
    """
    share = FIRST_TRY * cap_tokens / max(1, tokens)
    best: tuple[float, int] | None = None
    for attempt in range(TRIES):
        taken = count(shortened_body(body, share))
        if taken <= cap_tokens and (best is None or taken > best[1]):
            best = share, taken
        if best is not None and (best[1] >= WELL_FILLED * cap_tokens or attempt >= ENOUGH_TRIES):
            return best
        # Text is not equally dense everywhere: try again with as much more or less as this try was off.
        share *= min(MOST_GROWTH, CAUTION * cap_tokens / taken) if taken <= cap_tokens or attempt < 2 else SHRINK
    return best or (share, count(shortened_body(body, share)))


def shorten_text(text: str, keep_chars: int, head_share: float = HEAD_SHARE) -> str:
    """Head (70 %) and tail (30 %) of a text, cut at a newline where one is near, and between them what is missing."""
    if len(text) <= keep_chars:
        return text
    head_chars = int(keep_chars * head_share)
    tail_chars = keep_chars - head_chars
    head = text[:head_chars]
    newline = head.rfind("\n", int(head_chars * (1 - NEWLINE_REACH_SHARE)))
    if newline >= 0:
        head = head[:newline]
    tail = text[len(text) - tail_chars :]
    newline = tail.find("\n", 0, int(tail_chars * NEWLINE_REACH_SHARE) + 1)
    if newline >= 0:
        tail = tail[newline + 1 :]
    missing = len(text) - len(head) - len(tail)
    return "\n".join(part for part in (head, f"[… {missing:,} characters left out …]", tail) if part)


def contents_within(content: object, chars: int, head_share: float = HEAD_SHARE) -> object:
    """A content whose texts together keep about `chars` characters; long ones give in proportion."""
    if isinstance(content, str):
        return shorten_text(content, chars, head_share)
    length = len(text_of(content))
    return content if length <= chars else _content(content, chars / length, head_share)


def shortened_body(body: dict[str, Any], share: float) -> dict[str, Any]:
    """A copy of a message whose long texts keep `share` of their characters."""
    copy = dict(body)
    if "content" in body:
        copy["content"] = _content(body["content"], share)
    if isinstance(body.get("tool_calls"), list):
        copy["tool_calls"] = [_call(call, share) for call in body["tool_calls"]]
    if isinstance(body.get("function_call"), dict):
        copy["function_call"] = _function(body["function_call"], share)
    return copy


def shortened_arguments(arguments: str, chars: int) -> str:
    """Arguments in at most `chars` characters that still are a JSON object: long strings inside give; where that is
    not enough, an object that says how much is left out."""
    if len(arguments) <= chars:
        return arguments
    decoded = _object(arguments)
    share, length = chars / len(arguments), len(arguments) + 1
    while decoded is not None:
        shorter = orjson.dumps(_value(decoded, share)).decode()
        if len(shorter) <= chars:
            return shorter
        if len(shorter) >= length:
            break
        share, length = share * SHRINK, len(shorter)
    return _left_out(arguments)


def _content(content: object, share: float, head_share: float = HEAD_SHARE) -> object:
    if isinstance(content, str):
        return _text(content, share, head_share)
    if isinstance(content, list):
        return [_part(part, share, head_share) for part in content]
    return content


def _part(part: object, share: float, head_share: float) -> object:
    if isinstance(part, str):
        return _text(part, share, head_share)
    if isinstance(part, dict):
        return {
            key: _text(value, share, head_share) if _holds_text(key, value) else value for key, value in part.items()
        }
    return part


def _holds_text(key: str, value: object) -> bool:
    return key in {"text", "refusal"} and isinstance(value, str)


def _text(text: str, share: float, head_share: float = HEAD_SHARE) -> str:
    return text if len(text) <= SHORT_TEXT_CHARS else shorten_text(text, int(len(text) * share), head_share)


def _call(call: object, share: float) -> object:
    if not isinstance(call, dict):
        return call
    copy = dict(call)
    if isinstance(call.get("function"), dict):
        copy["function"] = _function(call["function"], share)
    custom = call.get("custom")
    if isinstance(custom, dict) and isinstance(custom.get("input"), str):
        copy["custom"] = {**custom, "input": _text(custom["input"], share)}
    return copy


def _function(function: dict[str, Any], share: float) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or len(arguments) <= SHORT_TEXT_CHARS:
        return function
    return {**function, "arguments": _arguments(arguments, share)}


def _arguments(arguments: str, share: float) -> str:
    """Arguments in fewer characters that still are a JSON object: long strings inside give, then the whole does."""
    decoded = _object(arguments)
    if decoded is not None:
        shorter = orjson.dumps(_value(decoded, share)).decode()
        if share >= LEAST_ARGUMENTS_SHARE or len(shorter) <= 2 * SHORT_TEXT_CHARS:
            return shorter
    return _left_out(arguments)


def _object(arguments: str) -> dict[str, Any] | None:
    """Decoded arguments; None where they are no JSON object, or nested too deeply to be taken apart."""
    try:
        decoded = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return decoded if isinstance(decoded, dict) and not is_too_deep(decoded) else None


def _left_out(arguments: str) -> str:
    return orjson.dumps({"left_out": f"{len(arguments):,} characters"}).decode()


def _value(value: object, share: float) -> object:
    if isinstance(value, str):
        return _text(value, share)
    if isinstance(value, dict):
        return {key: _value(entry, share) for key, entry in value.items()}
    if isinstance(value, list):
        return [_value(entry, share) for entry in value]
    return value
