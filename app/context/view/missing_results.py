"""Tool calls whose results are missing: each gets a result of its own in the view. Pure.

Providers refuse a call without its result when the conversation goes on behind it, and would refuse every later turn.
The log stays as it is: a result that comes later is the real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import orjson

from app.context.stages.tool_round_text import TOOL_RESULT_ROLES

MISSING_RESULT_TEXT: Final = "[There is no result of this call: the conversation went on without it.]"
_TOOL_CALLS_KEY: Final = b'"tool_calls"'


class _CallFields(msgspec.Struct):
    """What pairs calls with results, and nothing else of a message."""

    role: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None


ROLE_SEARCH_BYTES: Final = 256
_ROLE_PATTERN: Final = re.compile(rb'\s*\{\s*(?:"[a-z_]+"\s*:\s*"[^"\\]*"\s*,\s*)*"role"\s*:\s*"([a-z]+)"')
"""Behind nothing but short strings."""
_call_fields_decoder: Final = msgspec.json.Decoder(_CallFields)


def add_missing_results(messages: Sequence[bytes], *, at_end: bool = False) -> list[bytes]:
    """The messages with a result for each call that has none, behind the other results of the same message.

    Calls and results are paired by their place, and by id where there are fewer results than calls: some providers give
    every call the same id, or none. The last message may be one that calls tools: nothing follows it that a provider
    could refuse.

    Args:
        messages: JSON text of each message of a view.
        at_end: close calls of the last message, too, since another message is to follow it.
    """
    closed: list[bytes] = []
    place = 0
    for end, stubs in _find_missing_results(messages, at_end=at_end):
        closed += (*messages[place:end], *stubs)
        place = end
    return [*closed, *messages[place:]]


def has_missing_results(messages: Sequence[bytes]) -> bool:
    """Whether `add_missing_results` would add anything."""
    return next(_find_missing_results(messages), None) is not None


def is_missing_result(raw: bytes) -> bool:
    """Whether a message is a result that `add_missing_results` has added."""
    return MISSING_RESULT_TEXT.encode() in bytes(raw) and raw == _build_missing_result(
        _decode_call_fields(raw).tool_call_id
    )


def _find_missing_results(messages: Sequence[bytes], *, at_end: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """The place behind each round that lacks results, and the results that it gets."""
    end = 0
    while end < len(messages):
        raw = messages[end]
        end += 1
        if _TOOL_CALLS_KEY not in bytes(raw):
            continue
        asking = _decode_call_fields(raw)
        if asking.role != "assistant" or not isinstance(asking.tool_calls, list):
            continue
        first = end
        while end < len(messages) and _read_role(messages[end]) in TOOL_RESULT_ROLES:
            end += 1
        results = messages[first:end]
        if len(results) >= len(asking.tool_calls) or (end == len(messages) and not (results or at_end)):
            continue
        answered = [_decode_call_fields(result).tool_call_id for result in results]
        ids = [call.get("id") for call in asking.tool_calls if isinstance(call, dict)]
        stubs = [
            _build_missing_result(call_id) for call_id in ids if isinstance(call_id, str) and call_id not in answered
        ]
        if stubs:
            yield end, stubs


def _read_role(raw: bytes) -> Any:
    """The role of a message, without decoding it where it stands near its beginning."""
    found = _ROLE_PATTERN.match(raw, 0, ROLE_SEARCH_BYTES)
    return _decode_call_fields(raw).role if found is None else found[1].decode()


def _decode_call_fields(raw: bytes) -> _CallFields:
    try:
        return _call_fields_decoder.decode(raw)
    except msgspec.DecodeError:
        return _CallFields()


def _build_missing_result(call_id: str) -> bytes:
    return orjson.dumps({"role": "tool", "tool_call_id": call_id, "content": MISSING_RESULT_TEXT})
