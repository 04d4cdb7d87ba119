"""The pieces of canonical forms: texts, JSON and lengths, written so that equal content has equal bytes.

The canonical form of a message is the part that stays the same when clients send the message back in their own shape.
Its dialect builds it (`dialects.chat.canonical_message`) from these pieces. The bytes are only hashed. A change of the
form needs a new `ALGORITHM` in `conversation.identity`.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

import orjson

from app.conversation.json_text import MAX_JSON_DEPTH

LARGEST_PLAIN_NUMBER = 1e21
"""ECMAScript writes whole numbers below this without an exponent (ECMA-262, Number::toString)."""
LARGEST_EXACT_FLOAT = 2**53
LARGEST_PARSED_INTEGER = 2**63
"""Above this, orjson may round an integer to a float (unsigned integers only above 2^64)."""

_JSON_STARTS = frozenset('{["-0123456789tfn')
_SCALARS = frozenset((str, int, bool, type(None)))

CanonicalItem = tuple[bytes, bytes]
"""A kind of one letter, and the item's bytes."""


def encode_with_lengths(role: bytes, items: Sequence[CanonicalItem]) -> bytes:
    """Joins role and items with their lengths, so that no two different messages have the same bytes."""
    return b"%d:%b" % (len(role), role) + b"".join([b"%b%d:%b" % (kind, len(value), value) for kind, value in items])


def encode_name(name: object) -> bytes:
    return encode_utf8(name) if isinstance(name, str) else encode_json(name)


def build_text_item(text: str) -> CanonicalItem | None:
    """Encodes a text with LF line ends, in NFC, without outer white space. Returns None for an empty text."""
    cleaned = normalize_text(text)
    return (b"t", cleaned.encode("utf-8", "surrogatepass")) if cleaned else None


def build_answer_text_item(text: str) -> CanonicalItem | None:
    """Encodes a text without its leading `<think>…</think>` blocks. A block without an end stays."""
    while (rest := text.lstrip()).startswith("<think>"):
        end = rest.find("</think>")
        if end < 0:
            break
        text = rest[end + len("</think>") :]
    return build_text_item(text)


def build_json_or_text_item(text: str) -> CanonicalItem | None:
    """Encodes a text as canonical JSON if it is JSON, else as text. It is parsed before it is normalized: NFC would
    make a difference between an escaped character and the same character written out."""
    dumped = _canonicalize_json_text(text.strip())
    return build_text_item(text) if dumped is None else (b"j", dumped)


def normalize_text(text: str) -> str:
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.strip()


def _canonicalize_json_text(text: str) -> bytes | None:
    """Returns the canonical JSON of a JSON text, or None if the text is not JSON or is nested too deeply. Integers are
    exact. Values that only Python's own parser accepts (NaN, infinities, lone surrogates) are parsed by it."""
    if text[:1] not in _JSON_STARTS:
        return None
    try:
        return _encode_canonical_json(orjson.loads(text), exact=False)
    except (orjson.JSONDecodeError, _NumberRounded):
        # orjson is much faster but rounds long integers and refuses NaN; then the standard library parses again.
        pass
    try:
        return _encode_canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def encode_json(value: object) -> bytes:
    """Returns the canonical JSON of a decoded value. All values that are nested too deeply have the same encoding."""
    return _encode_canonical_json(value) or b"too deep"


def _encode_canonical_json(value: object, *, exact: bool = True) -> bytes | None:
    """Returns JSON with sorted keys, no white space, and numbers by value (as RFC 8785, but whole numbers are exact
    beyond 2^53), or None if the value is nested too deeply. The choice of the serializer depends on the value alone, so
    equal values have equal bytes.

    Raises:
        _NumberRounded: `exact` is False, and a number may have lost digits when it was parsed.
    """
    try:
        plain = _normalize_numbers(value, 0, exact)
    except RecursionError:
        return None
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, a lone surrogate, NaN, an infinity
        return encode_utf8(json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


class _NumberRounded(Exception):
    """A number may have lost digits when orjson parsed it."""


class _NotFinite(float):
    """NaN or an infinity. orjson would write null for a float, but refuses this subclass, so that the other serializer
    writes it."""


def _normalize_numbers(value: object, depth: int, exact: bool) -> object:
    """Returns the value with whole floats as integers.

    Raises:
        RecursionError: the value is nested deeper than `MAX_JSON_DEPTH`.
        _NumberRounded: see `_encode_canonical_json`.
    """
    if isinstance(value, float):
        return _normalize_number(value, exact)
    if isinstance(value, (list, dict)) and depth >= MAX_JSON_DEPTH:
        raise RecursionError
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else _normalize_numbers(item, depth + 1, exact) for item in value]
    if isinstance(value, dict):
        return {
            key: item if type(item) in _SCALARS else _normalize_numbers(item, depth + 1, exact)
            for key, item in value.items()
        }
    return value


def _normalize_number(number: float, exact: bool) -> int | float:
    """Returns a whole float as the integer that JavaScript prints for it, and any other float as it is."""
    if not math.isfinite(number):
        return _NotFinite(number)
    if not exact and abs(number) >= LARGEST_PARSED_INTEGER:
        raise _NumberRounded
    if abs(number) >= LARGEST_PLAIN_NUMBER or not number.is_integer():
        return number
    return int(number) if abs(number) <= LARGEST_EXACT_FLOAT else int(Decimal(repr(number)))


def hash_sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
