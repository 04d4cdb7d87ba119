"""Adds a result to each tool call of a view whose result is missing. Pure.

Providers refuse a call without a result if more messages follow, and would refuse every later turn. The log is not
changed: a result that comes later is the real one. Messages of all protocols are understood; the results that are added
are chat messages, and the renderer of another protocol translates them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import orjson

from app.conversation.item import TOOL_RESULT_ROLES
from app.dialects.items.item_kinds import ItemFields, find_message_role, is_client_call, read_call_id
from app.dialects.messages.message import RAW_BEGIN

MISSING_RESULT_TEXT: Final = "[There is no result of this call: the conversation went on without it.]"
TOOL_CALLS_KEY: Final = b'"tool_calls"'
"""A chat message without these bytes calls no tool."""
CALL_TYPE_ENDS: Final = (b'_call"', b'"mcp_approval_request"', b'"tool_use"')
"""Messages of the other protocols without these bytes call no tool."""


class _CallFields(msgspec.Struct):
    """The fields of a chat message that pair calls with results."""

    role: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None


class _Block(msgspec.Struct):
    """The fields of a block of the Messages API that pair calls with results."""

    type: Any = None
    id: Any = None
    tool_use_id: Any = None


class _BlocksMessage(msgspec.Struct):
    role: Any = None
    content: str | list[_Block] = ""


class _MessagesText(msgspec.Struct):
    """The raw text of a message of the Messages API."""

    anthropic: _BlocksMessage


ROLE_SEARCH_BYTES: Final = 256
"""How many bytes at the start of a message are searched for the role."""
_ROLE_PATTERN: Final = re.compile(rb'\s*\{\s*(?:"[a-z_]+"\s*:\s*"[^"\\]*"\s*,\s*)*"role"\s*:\s*"([a-z]+)"')
"""Matches the role if only fields with short, plain strings stand before it."""
_call_fields_decoder: Final = msgspec.json.Decoder(_CallFields)
_items_decoder: Final = msgspec.json.Decoder(list[ItemFields])
_messages_decoder: Final = msgspec.json.Decoder(_MessagesText)


def may_have_tool_calls(raw: bytes) -> bool:
    """Returns whether a request or a message may call a tool. False is certain."""
    return TOOL_CALLS_KEY in raw or any(end in raw for end in CALL_TYPE_ENDS)


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
    return MISSING_RESULT_TEXT.encode() in bytes(raw) and raw == _build_placeholder_result(
        _decode_call_fields(raw).tool_call_id
    )


def _find_missing_tool_results(messages: Sequence[bytes], *, at_end: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the place after each round that lacks results, and the results to add there."""
    end = 0
    while end < len(messages):
        raw = bytes(messages[end])
        end += 1
        # Most messages call no tool: a search for the key is much cheaper than decoding each message.
        if not may_have_tool_calls(raw):
            continue
        asking = _decode_call_fields(raw)
        if asking.role != "assistant" or not isinstance(asking.tool_calls, list):
            continue
        first = end
        while end < len(messages) and _read_role(messages[end]) in TOOL_RESULT_ROLES:
            end += 1
        results = messages[first:end]
        # As many results as calls: the round is complete, whatever ids they have. At the end of the view, open calls
        # are normal unless some of them have results already.
        if len(results) >= len(asking.tool_calls) or (end == len(messages) and not (results or at_end)):
            continue
        answered = [_decode_call_fields(result).tool_call_id for result in results]
        ids = [call.get("id") for call in asking.tool_calls if isinstance(call, dict)]
        stubs = [
            _build_placeholder_result(call_id)
            for call_id in ids
            if isinstance(call_id, str) and call_id not in answered
        ]
        if stubs:
            yield end, stubs


def _read_role(raw: bytes) -> Any:
    """Returns the role of a message. The message is decoded only if the role is not near its beginning."""
    found = _ROLE_PATTERN.match(raw, 0, ROLE_SEARCH_BYTES)
    return _decode_call_fields(raw).role if found is None else found[1].decode()


def _decode_call_fields(raw: bytes) -> _CallFields:
    try:
        # A message that was cut out of a request is a `msgspec.Raw`, which has no slices.
        begin = bytes(memoryview(raw)[: len(RAW_BEGIN)])
        if begin == RAW_BEGIN:
            return _decode_block_calls(raw)
        return _decode_item_calls(raw) if begin[:1] == b"[" else _call_fields_decoder.decode(raw)
    # A message of the client that is no valid JSON object has neither calls nor results; validation is done elsewhere.
    except msgspec.DecodeError:
        return _CallFields()


def _decode_item_calls(raw: bytes) -> _CallFields:
    """Returns the pairing fields of a run of items, as the chat message would have them."""
    items = [msgspec.structs.asdict(item) for item in _items_decoder.decode(raw)]
    role = find_message_role(items[0]) if items else None
    calls = [{"id": read_call_id(item)} for item in items if is_client_call(item)]
    return _CallFields(role, calls, read_call_id(items[0]) if role == "tool" else None)


def _decode_block_calls(raw: bytes) -> _CallFields:
    """Returns the pairing fields of a message of the Messages API, as the chat message would have them."""
    message = _messages_decoder.decode(raw).anthropic
    blocks = [] if isinstance(message.content, str) else message.content
    if blocks and blocks[0].type == "tool_result":
        return _CallFields("tool", None, blocks[0].tool_use_id)
    return _CallFields(message.role, [{"id": block.id} for block in blocks if block.type == "tool_use"])


def _build_placeholder_result(call_id: str) -> bytes:
    return orjson.dumps({"role": "tool", "tool_call_id": call_id, "content": MISSING_RESULT_TEXT})
