"""Adds a result to each tool call of a view whose result is missing. Pure.

Providers refuse a call without a result if more messages follow, and would refuse every later turn. The log is not
changed: a result that comes later is the real one. Messages of all protocols are understood; the results that are added
are chat messages, and the renderer of another protocol translates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from app.conversation.item import TOOL_RESULT_ROLES, Item
from app.dialects.item_decoding import decode_item
from app.errors import InvalidRequest

MISSING_RESULT_TEXT: Final = "[There is no result of this call: the conversation went on without it.]"


def may_have_tool_calls(raw: bytes) -> bool:
    """Returns whether a request or a message may call a tool. False is certain."""
    # The first stands in every chat message that calls a tool, one of the others in those of the other protocols.
    return b'"tool_calls"' in raw or b'_call"' in raw or b'"mcp_approval_request"' in raw or b'"tool_use"' in raw


def add_missing_tool_results(messages: Sequence[bytes], *, at_end: bool = False) -> list[bytes]:
    """Returns the messages with a result for each call that has none, after the other results of the same message.

    Calls and results are paired by their place, and by id if there are fewer results than calls: some providers give
    every call the same id, or none. The last message may be one that calls tools: nothing follows that a provider could
    refuse.

    Args:
        messages: JSON text of each message of a view.
        at_end: add results for calls of the last message, too, since another message will follow it.
    """
    closed: list[bytes] = []
    position = 0
    for end, stubs in _find_missing_tool_results(messages, at_end=at_end):
        closed += (*messages[position:end], *stubs)
        position = end
    return [*closed, *messages[position:]]


def has_missing_tool_results(messages: Sequence[bytes]) -> bool:
    """Says whether `add_missing_tool_results` would add anything."""
    return next(_find_missing_tool_results(messages), None) is not None


def is_placeholder_result(raw: bytes) -> bool:
    """Says whether `add_missing_tool_results` added this message."""
    raw = bytes(raw)
    return MISSING_RESULT_TEXT.encode() in raw and raw == _build_placeholder_result(decode_item(raw).result_for)


def _find_missing_tool_results(messages: Sequence[bytes], *, at_end: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the place after each round that lacks results, and the results to add there."""
    end = 0
    while end < len(messages):
        raw = bytes(messages[end])
        end += 1
        # Most messages call no tool: a search for the key is much cheaper than decoding each message.
        if not may_have_tool_calls(raw):
            continue
        asking = decode_item(raw)
        if _read_role(asking) != "assistant":
            continue
        calls, results = asking.calls, list[Item]()
        while end < len(messages) and _read_role(result := decode_item(bytes(messages[end]))) in TOOL_RESULT_ROLES:
            results.append(result)
            end += 1
        # As many results as calls: the round is complete, whatever ids they have. At the end of the view, open calls
        # are normal unless some of them have results already.
        if len(results) >= len(calls) or (end == len(messages) and not (results or at_end)):
            continue
        answered = {result.result_for for result in results}
        stubs = [_build_placeholder_result(one.id) for one in calls if one.id is not None and one.id not in answered]
        if stubs:
            yield end, stubs


def _read_role(message: Item) -> str:
    """Returns the role of a message; empty for one that cannot be read, which is refused elsewhere."""
    try:
        return message.role
    except InvalidRequest:
        return ""


def _build_placeholder_result(call_id: str | None) -> bytes:
    return orjson.dumps({"role": "tool", "tool_call_id": call_id, "content": MISSING_RESULT_TEXT})
