"""Limits how deeply JSON may be nested. No function here recurses, so the check itself cannot overflow the stack."""

from __future__ import annotations

from typing import Final

MAX_JSON_DEPTH: Final = 200
"""Below the limit of every parser and serializer that JSON of a client passes through."""
TOO_DEEP_MESSAGE: Final = f"is nested too deeply: at most {MAX_JSON_DEPTH} levels."
"""The end of an error message; the name of the value comes before it."""


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
    return raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH
