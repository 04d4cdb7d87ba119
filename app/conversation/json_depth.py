"""How deep JSON may be nested before it is refused or taken as text. Nothing here recurses."""

from __future__ import annotations

from typing import Final

MAX_JSON_DEPTH: Final = 200
"""Below the limits of every parser and serializer that may meet it."""
TOO_DEEP_MESSAGE: Final = f"is nested too deeply: at most {MAX_JSON_DEPTH} levels."
"""What is said of it, after its name."""


def is_too_deep(value: object) -> bool:
    """Whether objects and arrays of a decoded value are nested deeper than `MAX_JSON_DEPTH`."""
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
    """Whether a JSON text has brackets enough for that: most are known not to be too deep without a look inside."""
    return raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH
