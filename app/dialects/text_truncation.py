"""Shortens long texts and arguments: keeps head and tail, with a line between that says how much is missing. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from app.conversation.json_text import decode_json_or, is_too_deep

DEFAULT_HEAD_SHARE = 0.7
NEWLINE_SEARCH_SHARE = 0.2
"""A cut moves to a newline if one is within this share of the kept piece."""
SHORT_TEXT_CHARS = 64
"""Texts up to this length (names, numbers, paths) stay whole."""
MIN_ARGUMENTS_SHARE = 0.1
"""Arguments that would have to go below this share are mostly short values, and are replaced as a whole."""
SHRINK_FACTOR = 0.7
"""The share of the text is multiplied by this if an attempt is still too long."""


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


def truncate_long_text(text: str, share: float, head_share: float = DEFAULT_HEAD_SHARE) -> str:
    return text if len(text) <= SHORT_TEXT_CHARS else truncate_text(text, int(len(text) * share), head_share)


def truncate_arguments_by_share(arguments: str, share: float) -> str:
    """Returns long arguments shorter, and still a JSON object: long strings in it are cut; if that is not enough, the
    whole object is replaced.
    """
    if len(arguments) <= SHORT_TEXT_CHARS:
        return arguments
    decoded = _decode_arguments(arguments)
    if decoded is not None:
        shorter = orjson.dumps(_truncate_json_value(decoded, share)).decode()
        if share >= MIN_ARGUMENTS_SHARE or len(shorter) <= 2 * SHORT_TEXT_CHARS:
            return shorter
    return _build_left_out_notice(arguments)


def _decode_arguments(arguments: str) -> dict[str, Any] | None:
    """Returns decoded arguments; None if they are no JSON object, or nested too deeply for the recursion."""
    decoded = decode_json_or(arguments, None)
    return decoded if isinstance(decoded, dict) and not is_too_deep(decoded) else None


def _build_left_out_notice(arguments: str) -> str:
    return orjson.dumps({"left_out": f"{len(arguments):,} characters"}).decode()


def _truncate_json_value(value: object, share: float) -> object:
    if isinstance(value, str):
        return truncate_long_text(value, share)
    if isinstance(value, dict):
        return {key: _truncate_json_value(entry, share) for key, entry in value.items()}
    if isinstance(value, list):
        return [_truncate_json_value(entry, share) for entry in value]
    return value
