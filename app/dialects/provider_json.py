"""Reads and writes the JSON of providers, which may hold what strict readers refuse: halves of surrogate pairs, since
some servers cut a character in two, and numbers that no double holds. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep, write_large_integers_as_text
from app.errors import UpstreamUnavailable

MAX_INTEGER_DIGITS: Final = 19


def decode_object(data: bytes, source: str = "The provider") -> dict[str, Any]:
    """Decodes a JSON object. Some servers, such as Gemini's, wrap a single object in a list.

    Args:
        source: who has sent it, for error messages.

    Raises:
        UpstreamUnavailable: the data is not JSON, no object, or nested too deeply.
    """
    return decode_leniently(data, source)[0]


def decode_leniently(data: bytes, source: str = "The provider") -> tuple[dict[str, Any], bool]:
    """Decodes a JSON object as `decode_object`, and says whether a strict reader would refuse it."""
    is_lenient = False
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        is_lenient = True
        try:
            value = json.loads(data, parse_int=_parse_integer)
        except (ValueError, RecursionError) as error:
            raise UpstreamUnavailable(f"{source} answered with data that is not JSON.") from error
    if may_be_too_deep(data) and is_too_deep(value):
        raise UpstreamUnavailable(f"{source} answered with data that {TOO_DEEP_MESSAGE}")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        raise UpstreamUnavailable(f"{source} answered with data that is not a JSON object.")
    return value, is_lenient


def encode_json(value: Any) -> bytes:
    """Encodes JSON that may hold halves of a surrogate pair or integers beyond 64 bits.

    Raises:
        UpstreamUnavailable: the value is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError as error:
        raise UpstreamUnavailable("The provider answered with data that is nested too deeply.") from error


def normalize_json(data: bytes) -> bytes:
    """Returns a JSON object as every reader takes it. What only lenient readers take is changed: lone halves of
    surrogate pairs become U+FFFD, numbers that no double holds null or text.

    Raises:
        UpstreamUnavailable: as of `decode_object`.
    """
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.dumps(write_large_integers_as_text(join_surrogates(decode_object(data))))
    return data


def join_surrogates(value: Any) -> Any:
    """Returns JSON with the halves of surrogate pairs joined; a half that stays alone becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _parse_integer(digits: str) -> int | float:
    """Reads an integer as orjson does: one that 64 bits cannot hold becomes a float."""
    return int(digits) if len(digits) < MAX_INTEGER_DIGITS else float(digits)
