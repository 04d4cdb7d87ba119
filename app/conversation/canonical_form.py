"""The canonical form of a message: what stays of it when clients send it back in their own shape.

Role, text, other parts by content hash, tool calls by name and parsed arguments, tool results parsed where they are
JSON. Everything else (nulls, ids, annotations, reasoning, vendor fields, key order) is left out, because clients drop
or reshape it. The bytes only ever feed a hash; a change of this form is a new `ALGORITHM` in `conversation.identity`.
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

TRANSPARENT_ROLES = ("system", "developer")
REASONING_PARTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
UNSTABLE_PART_FIELDS = ("cache_control", "prompt_cache_breakpoint", "detail")
"""Fields of a content part that a client changes without meaning another part."""

LARGEST_PLAIN_NUMBER = 1e21
"""ECMAScript writes whole numbers below this without an exponent (ECMA-262, Number::toString)."""
EXACT_FLOAT = 2**53
LARGEST_PARSED_INTEGER = 2**63
"""Beyond it orjson may round an integer to a float (unsigned ones only beyond 2^64)."""

_JSON_STARTS = frozenset('{["-0123456789tfn')
_SCALARS = frozenset((str, int, bool, type(None)))

Item = tuple[bytes, bytes]
"""A one-letter kind and its bytes."""


def canonical(body: dict[str, Any]) -> bytes | None:
    """The canonical bytes of a message, or None for one that the chain looks through.

    Looked through are system and developer messages wherever they stand, and assistant messages with neither content
    nor tool calls. Any decodable JSON object is accepted: values of an unexpected type are compared by their JSON.
    """
    role, content = body.get("role"), body.get("content")
    if role == "user":
        return _framed(b"user", _content_items(content, _text_item))
    if role in TRANSPARENT_ROLES:
        return None
    if role == "assistant":
        calls = _calls_of(body)
        if calls:
            return _framed(b"assistant", [_call_item(call) for call in calls])
        items = _answer_items(body)
        return _framed(b"assistant", items) if items else None
    if role in ("tool", "function"):
        return _framed(b"tool", _content_items(content, _result_item))
    return _framed(_name(role), _content_items(content, _text_item))


def in_skeleton(body: dict[str, Any]) -> bool:
    """Whether a message that is not looked through is a user's text or an assistant's final text."""
    role = body.get("role")
    return role == "user" or (role == "assistant" and not _calls_of(body))


def skeleton_part(body: dict[str, Any]) -> bytes | None:
    """What a message adds to the skeleton chain, or None."""
    return canonical(body) if in_skeleton(body) else None


def answer_text(body: dict[str, Any]) -> str:
    """The text of an assistant's final answer in canonical form; empty for an answer with tool calls."""
    if _calls_of(body):
        return ""
    return b"".join([text for kind, text in _answer_items(body) if kind == b"t"]).decode("utf-8", "surrogatepass")


def _answer_items(body: dict[str, Any]) -> list[Item]:
    content = body.get("content")
    return _content_items(_with_refusal(content, body["refusal"]) if "refusal" in body else content, _answer_item)


def _framed(role: bytes, items: Sequence[Item]) -> bytes:
    """Role and items with their lengths, so that no two different messages have the same bytes."""
    if len(items) == 1:
        ((kind, value),) = items
        return b"%d:%b%b%d:%b" % (len(role), role, kind, len(value), value)
    return b"%d:%b" % (len(role), role) + b"".join([b"%b%d:%b" % (kind, len(value), value) for kind, value in items])


def _with_refusal(content: object, refusal: object) -> object:
    """An assistant's content with its refusal, which counts as text, at the end."""
    if not isinstance(refusal, str) or not refusal:
        return content
    if not content:
        return refusal
    return [*content, refusal] if isinstance(content, list) else [content, refusal]


def _content_items(content: object, item_of: Callable[[str], Item | None]) -> list[Item]:
    """Content in order: each run of text joined and passed through `item_of`, other parts by kind and hash."""
    if isinstance(content, str):
        item = item_of(content)
        return [item] if item else []
    if content is None:
        return []
    if not isinstance(content, list):
        return [(b"p", _json_text(content))]
    items: list[Item | None] = []
    run: list[str] = []
    for part in content:
        text = _text_of_part(part)
        if text is not None:
            run.append(text)
        else:
            items += (item_of("".join(run)), _part_item(part))
            run = []
    items.append(item_of("".join(run)))
    return [item for item in items if item]


def _text_of_part(part: object) -> str | None:
    """The text of a text or refusal part, nothing for reasoning, None for a part of another kind."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(refusal)}:
            return refusal
    return "" if part.get("type") in REASONING_PARTS else None


def _part_item(part: object) -> Item:
    """An image, audio or file part by what it holds or points to; an unknown part by its whole JSON."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(source)} | str(source)}:
            return b"i", _digest(_utf8(source))
        case {"type": "input_audio", "input_audio": {"data": str(source)}}:
            return b"a", _digest(_utf8(source))
        case {"type": "file", "file": {"file_id": str(source)} | {"file_data": str(source)}}:
            return b"f", _digest(_utf8(source))
    if isinstance(part, dict):
        part = {key: value for key, value in part.items() if key not in UNSTABLE_PART_FIELDS}
    return b"p", _digest(_json_text(part))


def _calls_of(body: dict[str, Any]) -> list[Any]:
    """Tool calls in order; a deprecated `function_call` is one call."""
    if "tool_calls" not in body and "function_call" not in body:
        return []
    calls = body.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    legacy = body.get("function_call")
    return [{"function": legacy}] if isinstance(legacy, dict) else []


def _call_item(call: object) -> Item:
    match call:
        case {"custom": {"name": name, "input": str(text)}}:
            return b"u", _framed(_name(name), [(b"t", _utf8(_clean(text)))])
        case {"function": {"name": name} as function}:
            return b"c", _framed(_name(name), [_arguments_item(function.get("arguments"))])
    return b"p", _json_text(call)


def _name(name: object) -> bytes:
    return _utf8(name) if isinstance(name, str) else _json_text(name)


def _arguments_item(arguments: object) -> Item:
    """Parsed arguments. None at all and an empty object are the same: clients turn one into the other."""
    if isinstance(arguments, str):
        return _result_item(arguments) or (b"j", b"{}")
    return b"j", _json_text({} if arguments is None else arguments)


def _text_item(text: str) -> Item | None:
    """LF line ends, NFC, no outer white space; None where nothing is left."""
    cleaned = _clean(text)
    return (b"t", cleaned.encode("utf-8", "surrogatepass")) if cleaned else None


def _answer_item(text: str) -> Item | None:
    """Text after its leading `<think>…</think>` blocks; an unclosed block stays."""
    while (rest := text.lstrip()).startswith("<think>"):
        end = rest.find("</think>")
        if end < 0:
            break
        text = rest[end + len("</think>") :]
    return _text_item(text)


def _result_item(text: str) -> Item | None:
    """Canonical JSON where the text is JSON, else the text. Parsed before cleaning: NFC would tell an escaped
    character from the same one written out."""
    dumped = _reserialized(text.strip())
    return _text_item(text) if dumped is None else (b"j", dumped)


def _clean(text: str) -> str:
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.strip()


def _reserialized(text: str) -> bytes | None:
    """Canonical JSON of a JSON text; None if it is none, or nested too deeply. Integers are exact, and what only
    Python's own parser takes (NaN, infinities, lone surrogates) is left to it."""
    if text[:1] not in _JSON_STARTS:
        return None
    try:
        return _canonical_json(orjson.loads(text), exact=False)
    except (orjson.JSONDecodeError, _Rounded):
        pass
    try:
        return _canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _json_text(value: object) -> bytes:
    """Canonical JSON of a decoded value; of one nested too deeply only that it is."""
    return _canonical_json(value) or b"too deep"


def _canonical_json(value: object, *, exact: bool = True) -> bytes | None:
    """JSON with sorted keys, no white space and numbers by value (as RFC 8785, but whole numbers are exact beyond
    2^53); None if it is nested too deeply. Which serializer writes it depends on the value alone.

    Raises:
        _Rounded: not `exact`, and a number may have lost digits when it was parsed.
    """
    try:
        plain = _by_value(value, 0, exact)
    except RecursionError:
        return None
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, a lone surrogate, NaN, an infinity
        return _utf8(json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


class _Rounded(Exception):
    pass


class _NotFinite(float):
    """NaN or an infinity: orjson would write null, and refuses this class."""


def _by_value(value: object, depth: int, exact: bool) -> object:
    """The value with its whole floats as integers.

    Raises:
        RecursionError: it is nested deeper than `MAX_JSON_DEPTH`.
        _Rounded: see `_canonical_json`.
    """
    if isinstance(value, float):
        return _number(value, exact)
    if isinstance(value, (list, dict)) and depth >= MAX_JSON_DEPTH:
        raise RecursionError
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else _by_value(item, depth + 1, exact) for item in value]
    if isinstance(value, dict):
        return {
            key: item if type(item) in _SCALARS else _by_value(item, depth + 1, exact) for key, item in value.items()
        }
    return value


def _number(number: float, exact: bool) -> int | float:
    """A whole float as the integer that JavaScript prints for it; others as they are."""
    if not math.isfinite(number):
        return _NotFinite(number)
    if not exact and abs(number) >= LARGEST_PARSED_INTEGER:
        raise _Rounded
    if abs(number) >= LARGEST_PLAIN_NUMBER or not number.is_integer():
        return number
    return int(number) if abs(number) <= EXACT_FLOAT else int(Decimal(repr(number)))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
