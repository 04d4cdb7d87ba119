"""Shortens long messages: keeps head and tail of their texts, with a line between that says how much is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from app.conversation.conversation_types import extract_text
from app.conversation.json_depth import is_too_deep

DEFAULT_HEAD_SHARE = 0.7
NEWLINE_SEARCH_SHARE = 0.2
"""A cut moves to a newline if one is within this share of the kept piece."""
SHORT_TEXT_CHARS = 64
"""Texts up to this length (names, numbers, paths) stay whole."""
MIN_ARGUMENTS_SHARE = 0.1
"""Arguments that would have to go below this share are mostly short values, and are replaced as a whole."""
FIRST_ATTEMPT_FACTOR = 0.95
"""The first attempt aims at this share of the cap: text is not equally dense everywhere, and the notice takes some
tokens."""
SHRINK_FACTOR = 0.7
"""The share of the text is multiplied by this if an attempt is still too long."""
MAX_ATTEMPTS = 16
GOOD_FILL_SHARE = 0.95
"""A message that fills this share of its cap is good enough."""
SUFFICIENT_ATTEMPTS = 3
"""After this many attempts any message within its cap is good enough."""
SAFETY_FACTOR = 0.985
"""Each further attempt aims at this share of the cap."""
MAX_GROWTH_FACTOR = 1.5
"""The share grows at most by this factor from one attempt to the next: some texts do not get longer with it."""


def find_fitting_text_share(
    body: dict[str, Any], tokens: int, cap_tokens: int, count_message: Callable[[dict[str, Any]], int]
) -> tuple[float, int]:
    """Returns the share of its texts that a message may keep to take at most `cap_tokens`, and the tokens that it then
    takes; the smallest share that was tried if none is small enough.

    Args:
        tokens: tokens of the whole message.
        count_message: counts the tokens of a message.
    """
    share = FIRST_ATTEMPT_FACTOR * cap_tokens / max(1, tokens)
    best: tuple[float, int] | None = None
    for attempt in range(MAX_ATTEMPTS):
        taken = count_message(truncate_message_texts(body, share))
        if taken <= cap_tokens and (best is None or taken > best[1]):
            best = share, taken
        if best is not None and (best[1] >= GOOD_FILL_SHARE * cap_tokens or attempt >= SUFFICIENT_ATTEMPTS):
            return best
        # The text is not equally dense everywhere: correct the share by the error of this attempt. After two attempts
        # that were too long, shrink by a fixed factor, which is sure to end.
        share *= (
            min(MAX_GROWTH_FACTOR, SAFETY_FACTOR * cap_tokens / taken)
            if taken <= cap_tokens or attempt < 2
            else SHRINK_FACTOR
        )
    return best or (share, count_message(truncate_message_texts(body, share)))


def truncate_text(text: str, keep_chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> str:
    """Returns head (70 % by default) and tail of a text, each cut at a newline if one is near, and between them a
    notice of what is missing.
    """
    if len(text) <= keep_chars:
        return text
    head_chars = int(keep_chars * head_share)
    tail_chars = keep_chars - head_chars
    head = text[:head_chars]
    newline = head.rfind("\n", int(head_chars * (1 - NEWLINE_SEARCH_SHARE)))
    if newline >= 0:
        head = head[:newline]
    tail = text[len(text) - tail_chars :]
    newline = tail.find("\n", 0, int(tail_chars * NEWLINE_SEARCH_SHARE) + 1)
    if newline >= 0:
        tail = tail[newline + 1 :]
    missing = len(text) - len(head) - len(tail)
    return "\n".join(part for part in (head, f"[… {missing:,} characters left out …]", tail) if part)


def truncate_content(content: object, chars: int, head_share: float = DEFAULT_HEAD_SHARE) -> object:
    """Returns a content whose texts together keep about `chars` characters; long texts are cut in proportion."""
    if isinstance(content, str):
        return truncate_text(content, chars, head_share)
    length = len(extract_text(content))
    return content if length <= chars else _truncate_content_by_share(content, chars / length, head_share)


def truncate_message_texts(body: dict[str, Any], share: float) -> dict[str, Any]:
    """Returns a copy of a message whose long texts keep `share` of their characters."""
    copy = dict(body)
    if "content" in body:
        copy["content"] = _truncate_content_by_share(body["content"], share)
    if isinstance(body.get("tool_calls"), list):
        copy["tool_calls"] = [_truncate_call(call, share) for call in body["tool_calls"]]
    if isinstance(body.get("function_call"), dict):
        copy["function_call"] = _truncate_function_arguments(body["function_call"], share)
    return copy


def truncate_arguments(arguments: str, chars: int) -> str:
    """Returns arguments in at most `chars` characters that are still a JSON object: long strings in it are cut. If that
    is not enough, the object only says how much is left out.
    """
    if len(arguments) <= chars:
        return arguments
    decoded = _decode_arguments(arguments)
    share, length = chars / len(arguments), len(arguments) + 1
    while decoded is not None:
        shorter = orjson.dumps(_truncate_json_value(decoded, share)).decode()
        if len(shorter) <= chars:
            return shorter
        # A smaller share did not help any more: all strings are short already.
        if len(shorter) >= length:
            break
        share, length = share * SHRINK_FACTOR, len(shorter)
    return _build_left_out_notice(arguments)


def _truncate_content_by_share(content: object, share: float, head_share: float = DEFAULT_HEAD_SHARE) -> object:
    if isinstance(content, str):
        return _truncate_long_text(content, share, head_share)
    if isinstance(content, list):
        return [_truncate_part(part, share, head_share) for part in content]
    return content


def _truncate_part(part: object, share: float, head_share: float) -> object:
    if isinstance(part, str):
        return _truncate_long_text(part, share, head_share)
    if isinstance(part, dict):
        return {
            key: _truncate_long_text(value, share, head_share) if _is_text_field(key, value) else value
            for key, value in part.items()
        }
    return part


def _is_text_field(key: str, value: object) -> bool:
    return key in {"text", "refusal"} and isinstance(value, str)


def _truncate_long_text(text: str, share: float, head_share: float = DEFAULT_HEAD_SHARE) -> str:
    return text if len(text) <= SHORT_TEXT_CHARS else truncate_text(text, int(len(text) * share), head_share)


def _truncate_call(call: object, share: float) -> object:
    if not isinstance(call, dict):
        return call
    copy = dict(call)
    if isinstance(call.get("function"), dict):
        copy["function"] = _truncate_function_arguments(call["function"], share)
    custom = call.get("custom")
    if isinstance(custom, dict) and isinstance(custom.get("input"), str):
        copy["custom"] = {**custom, "input": _truncate_long_text(custom["input"], share)}
    return copy


def _truncate_function_arguments(function: dict[str, Any], share: float) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or len(arguments) <= SHORT_TEXT_CHARS:
        return function
    return {**function, "arguments": _truncate_arguments_by_share(arguments, share)}


def _truncate_arguments_by_share(arguments: str, share: float) -> str:
    """Returns shorter arguments that are still a JSON object: long strings in it are cut; if that is not enough, the
    whole object is replaced.
    """
    decoded = _decode_arguments(arguments)
    if decoded is not None:
        shorter = orjson.dumps(_truncate_json_value(decoded, share)).decode()
        if share >= MIN_ARGUMENTS_SHARE or len(shorter) <= 2 * SHORT_TEXT_CHARS:
            return shorter
    return _build_left_out_notice(arguments)


def _decode_arguments(arguments: str) -> dict[str, Any] | None:
    """Returns decoded arguments; None if they are no JSON object, or nested too deeply for the recursion."""
    try:
        decoded = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return decoded if isinstance(decoded, dict) and not is_too_deep(decoded) else None


def _build_left_out_notice(arguments: str) -> str:
    return orjson.dumps({"left_out": f"{len(arguments):,} characters"}).decode()


def _truncate_json_value(value: object, share: float) -> object:
    if isinstance(value, str):
        return _truncate_long_text(value, share)
    if isinstance(value, dict):
        return {key: _truncate_json_value(entry, share) for key, entry in value.items()}
    if isinstance(value, list):
        return [_truncate_json_value(entry, share) for entry in value]
    return value
