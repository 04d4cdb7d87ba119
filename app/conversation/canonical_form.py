"""The canonical form of a message: the part that stays the same when clients send the message back in their own shape.

The form contains the role, the text, other parts by the hash of their content, tool calls by name and parsed arguments,
and tool results (parsed if they are JSON). It leaves out everything else (nulls, ids, annotations, reasoning, vendor
fields, key order), because clients drop or reshape it. The bytes are only hashed. A change of the form needs a new
`ALGORITHM` in `conversation.identity`.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import orjson

from app.conversation.json_depth import MAX_JSON_DEPTH

ROLES_LEFT_OUT = ("system", "developer")
REASONING_PART_TYPES = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
UNSTABLE_PART_FIELDS = ("cache_control", "prompt_cache_breakpoint", "detail")
"""Fields of a content part that a client may change although it means the same part."""

LARGEST_PLAIN_NUMBER = 1e21
"""ECMAScript writes whole numbers below this without an exponent (ECMA-262, Number::toString)."""
LARGEST_EXACT_FLOAT = 2**53
LARGEST_PARSED_INTEGER = 2**63
"""Above this, orjson may round an integer to a float (unsigned integers only above 2^64)."""

_JSON_STARTS = frozenset('{["-0123456789tfn')
_SCALARS = frozenset((str, int, bool, type(None)))

CanonicalItem = tuple[bytes, bytes]
"""A kind of one letter, and the item's bytes."""


def canonicalize_message(body: dict[str, Any]) -> bytes | None:
    """Returns the canonical bytes of a message, or None if the chain skips the message.

    The chain skips system and developer messages wherever they are, and assistant messages with neither content nor
    tool calls. Any JSON object is accepted: values of an unexpected type are compared by their JSON.
    """
    role, content = body.get("role"), body.get("content")
    if role == "user":
        return _encode_with_lengths(b"user", _build_content_items(content, _build_text_item))
    if role in ROLES_LEFT_OUT:
        return None
    if role == "assistant":
        calls = _extract_tool_calls(body)
        # The text beside tool calls is left out: some clients drop it, others send it back.
        if calls:
            return _encode_with_lengths(b"assistant", [_build_call_item(call) for call in calls])
        items = _build_answer_items(body)
        return _encode_with_lengths(b"assistant", items) if items else None
    if role in ("tool", "function"):
        return _encode_with_lengths(b"tool", _build_content_items(content, _build_json_or_text_item))
    return _encode_with_lengths(_encode_name(role), _build_content_items(content, _build_text_item))


def belongs_to_skeleton(body: dict[str, Any]) -> bool:
    """Returns whether a message that the chain does not skip is part of the skeleton: a user's text or an assistant's
    final text."""
    role = body.get("role")
    return role == "user" or (role == "assistant" and not _extract_tool_calls(body))


def canonicalize_skeleton_message(body: dict[str, Any]) -> bytes | None:
    """Returns the part that a message adds to the skeleton's chain, or None."""
    return canonicalize_message(body) if belongs_to_skeleton(body) else None


def canonicalize_answer_text(body: dict[str, Any]) -> str:
    """Returns the text of an assistant's final answer in canonical form. Empty for an answer with tool calls."""
    if _extract_tool_calls(body):
        return ""
    return b"".join([text for kind, text in _build_answer_items(body) if kind == b"t"]).decode("utf-8", "surrogatepass")


def _build_answer_items(body: dict[str, Any]) -> list[CanonicalItem]:
    content = body.get("content")
    return _build_content_items(
        _append_refusal(content, body["refusal"]) if "refusal" in body else content, _build_text_item_without_thinking
    )


def _encode_with_lengths(role: bytes, items: Sequence[CanonicalItem]) -> bytes:
    """Joins role and items with their lengths, so that no two different messages have the same bytes."""
    if len(items) == 1:
        ((kind, value),) = items
        return b"%d:%b%b%d:%b" % (len(role), role, kind, len(value), value)
    return b"%d:%b" % (len(role), role) + b"".join([b"%b%d:%b" % (kind, len(value), value) for kind, value in items])


def _append_refusal(content: object, refusal: object) -> object:
    """Returns an assistant's content with its refusal at the end. A refusal counts as text."""
    if not isinstance(refusal, str) or not refusal:
        return content
    if not content:
        return refusal
    return [*content, refusal] if isinstance(content, list) else [content, refusal]


def _build_content_items(
    content: object, build_text_item: Callable[[str], CanonicalItem | None]
) -> list[CanonicalItem]:
    """Returns the items of a content in order. Each run of text parts is joined and passed to `build_text_item`; other
    parts are encoded by kind and hash."""
    if isinstance(content, str):
        item = build_text_item(content)
        return [item] if item else []
    if content is None:
        return []
    if not isinstance(content, list):
        return [(b"p", _encode_json(content))]
    items: list[CanonicalItem | None] = []
    run: list[str] = []
    for part in content:
        text = _extract_part_text(part)
        if text is not None:
            run.append(text)
        else:
            items += (build_text_item("".join(run)), _build_part_item(part))
            run = []
    items.append(build_text_item("".join(run)))
    return [item for item in items if item]


def _extract_part_text(part: object) -> str | None:
    """Returns the text of a text or refusal part, "" for a reasoning part, and None for a part of another kind."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(refusal)}:
            return refusal
    return "" if part.get("type") in REASONING_PART_TYPES else None


def _build_part_item(part: object) -> CanonicalItem:
    """Encodes an image, audio or file part by its content or its address, and an unknown part by its whole JSON."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(source)} | str(source)}:
            return b"i", _hash_sha256(_encode_utf8(source))
        case {"type": "input_audio", "input_audio": {"data": str(source)}}:
            return b"a", _hash_sha256(_encode_utf8(source))
        case {"type": "file", "file": {"file_id": str(source)} | {"file_data": str(source)}}:
            return b"f", _hash_sha256(_encode_utf8(source))
    if isinstance(part, dict):
        part = {key: value for key, value in part.items() if key not in UNSTABLE_PART_FIELDS}
    return b"p", _hash_sha256(_encode_json(part))


def _extract_tool_calls(body: dict[str, Any]) -> list[Any]:
    """Returns the tool calls in order. A deprecated `function_call` counts as one call."""
    if "tool_calls" not in body and "function_call" not in body:
        return []
    calls = body.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    legacy = body.get("function_call")
    return [{"function": legacy}] if isinstance(legacy, dict) else []


def _build_call_item(call: object) -> CanonicalItem:
    match call:
        case {"custom": {"name": name, "input": str(text)}}:
            return b"u", _encode_with_lengths(_encode_name(name), [(b"t", _encode_utf8(_normalize_text(text)))])
        case {"function": {"name": name} as function}:
            return b"c", _encode_with_lengths(_encode_name(name), [_build_arguments_item(function.get("arguments"))])
    return b"p", _encode_json(call)


def _encode_name(name: object) -> bytes:
    return _encode_utf8(name) if isinstance(name, str) else _encode_json(name)


def _build_arguments_item(arguments: object) -> CanonicalItem:
    """Encodes parsed arguments. Missing arguments and an empty object are the same, because clients turn one into the
    other."""
    if isinstance(arguments, str):
        return _build_json_or_text_item(arguments) or (b"j", b"{}")
    return b"j", _encode_json({} if arguments is None else arguments)


def _build_text_item(text: str) -> CanonicalItem | None:
    """Encodes a text with LF line ends, in NFC, without outer white space. Returns None for an empty text."""
    cleaned = _normalize_text(text)
    return (b"t", cleaned.encode("utf-8", "surrogatepass")) if cleaned else None


def _build_text_item_without_thinking(text: str) -> CanonicalItem | None:
    """Encodes a text without its leading `<think>…</think>` blocks. A block without an end stays."""
    while (rest := text.lstrip()).startswith("<think>"):
        end = rest.find("</think>")
        if end < 0:
            break
        text = rest[end + len("</think>") :]
    return _build_text_item(text)


def _build_json_or_text_item(text: str) -> CanonicalItem | None:
    """Encodes a text as canonical JSON if it is JSON, else as text. It is parsed before it is normalized: NFC would
    make a difference between an escaped character and the same character written out."""
    dumped = _canonicalize_json_text(text.strip())
    return _build_text_item(text) if dumped is None else (b"j", dumped)


def _normalize_text(text: str) -> str:
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


def _encode_json(value: object) -> bytes:
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
        return _encode_utf8(json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


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


def _hash_sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
