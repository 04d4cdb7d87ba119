"""Writes JSON as text, and limits how deeply it may be nested and how large its integers may be. The check of the depth
does not recurse, so it cannot overflow the stack."""

from __future__ import annotations

from typing import Any, Final

import orjson

MAX_JSON_DEPTH: Final = 200
"""Below the limit of every parser and serializer that JSON of a client passes through."""
TOO_DEEP_MESSAGE: Final = f"is nested too deeply: at most {MAX_JSON_DEPTH} levels."
"""The end of an error message; the name of the value comes before it."""


def encode_compact_json(value: object) -> str:
    """Returns compact JSON; an empty text for a value that cannot be encoded."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return ""


def keep_text(value: object) -> str:
    """Returns a decoded value that is a text; an empty text for any other value."""
    return value if isinstance(value, str) else ""


def render_as_text(value: object) -> str:
    """Returns a decoded value that is a text; of any other value its JSON text, and of null an empty one."""
    if isinstance(value, str):
        return value
    return "" if value is None else encode_compact_json(value)


def decode_json_or(text: bytes | str, default: Any) -> Any:
    """Returns a decoded JSON text; `default` for a text that is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return default


def list_objects(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a decoded array; none for any other value."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def is_too_deep(value: object) -> bool:
    """Returns whether the objects and arrays of a decoded value are nested deeper than `MAX_JSON_DEPTH`."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def may_be_too_deep(raw: bytes) -> bool:
    """Returns whether a JSON text has enough opening brackets to be too deep. For most texts this is false, and no
    further check is needed."""
    return len(raw) > 2 * MAX_JSON_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH


def write_large_integers_as_text(value: Any) -> Any:
    """Returns a decoded value with each integer that 64 bits cannot hold as text: orjson encodes no larger ones.

    Args:
        value: nested at most `MAX_JSON_DEPTH` levels.
    """
    if isinstance(value, dict):
        return {name: write_large_integers_as_text(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [write_large_integers_as_text(inner) for inner in value]
    return str(value) if type(value) is int and not -(1 << 63) <= value < 1 << 64 else value
