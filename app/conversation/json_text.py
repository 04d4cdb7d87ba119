"""Writes JSON as text."""

from __future__ import annotations

import orjson


def encode_compact_json(value: object) -> str:
    """Returns compact JSON; an empty text for a value that cannot be encoded."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return ""
