"""Changes the ids of tool calls, in calls and results alike, and names results. Pure.

The id of a call depends only on what stands before it. So a growing conversation keeps its ids, and prompt caches are
used.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import orjson

from app.conversation.json_text import decode_json_or, keep_text
from app.dialects.request_body import encode_fields
from app.upstream.quirks.outgoing_message import (
    NULL,
    OutgoingMessage,
    is_empty_value,
    parse_array_elements,
    parse_object_members,
    render_array,
)

CallIdForm = Literal["unique", "alnum9"]

MISTRAL_CALL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}\Z")
"""The form that Mistral accepts: `MistralRequestValidatorV3` in mistral-common."""
_ALPHABET: Final = string.digits + string.ascii_letters


class _ToolCallId:
    """A tool call and its ids, for pairing it with its result."""

    __slots__ = ("is_answered", "name", "new_id", "old_id")

    def __init__(self, old_id: str, new_id: str, name: bytes) -> None:
        self.old_id, self.new_id, self.name = old_id, new_id, name
        self.is_answered = False


class _CallIdAllocator:
    """Gives each call an id of its own."""

    def __init__(self, form: CallIdForm | None) -> None:
        self._form = form
        self._used_ids: set[str] = set()
        self._use_counts: Counter[str] = Counter()

    def allocate(self, old_id: str) -> str:
        use = self._use_counts[old_id]
        self._use_counts[old_id] += 1
        new_id = next(candidate for candidate in self._list_candidates(old_id, use) if candidate not in self._used_ids)
        if self._form is not None:
            self._used_ids.add(new_id)
        return new_id

    def _list_candidates(self, old_id: str, use: int) -> Iterator[str]:
        if self._form is None or (old_id and (self._form == "unique" or MISTRAL_CALL_ID.match(old_id))):
            yield old_id
        prefix = "" if self._form == "alnum9" else "call_"
        attempt = 0
        while True:
            yield prefix + _short_hash(f"{attempt}:{use}:{old_id}")
            attempt += 1


def _short_hash(text: str) -> str:
    number = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def assign_call_ids(messages: Sequence[OutgoingMessage], form: CallIdForm | None, *, name_results: bool) -> None:
    """Gives calls ids of a form (None: unchanged), results the ids of their calls, and, with `name_results`, their
    names.

    A result belongs to the first unanswered call of its id in the newest message that has one; without an id, to the
    first unanswered call there is. A result without a call gets an id made from its own.
    """
    ids = _CallIdAllocator(form)
    calls_by_message: list[list[_ToolCallId]] = []
    for message in messages:
        if message.role == "assistant" and not is_empty_value(message["tool_calls"]):
            calls_by_message.append(_assign_ids_of_message(message, ids))
        elif message.role == "tool":
            _assign_result_id(
                message,
                _find_answered_call(_decode_id(message["tool_call_id"]), calls_by_message),
                ids,
                name_results=name_results,
            )


def _assign_ids_of_message(message: OutgoingMessage, ids: _CallIdAllocator) -> list[_ToolCallId]:
    calls: list[_ToolCallId] = []
    elements = parse_array_elements(message["tool_calls"])
    for index, element in enumerate(elements):
        if (members := parse_object_members(element)) is None:
            continue
        old_id = _decode_id(members.get("id", NULL))
        called = parse_object_members(members.get("function", members.get("custom", NULL))) or {}
        call = _ToolCallId(old_id, ids.allocate(old_id), called.get("name", NULL))
        calls.append(call)
        if call.new_id != old_id:
            elements[index] = encode_fields({**members, "id": orjson.dumps(call.new_id)})
    if any(call.new_id != call.old_id for call in calls):
        message["tool_calls"] = render_array(elements)
    return calls


def _find_answered_call(old_id: str, calls_by_message: Sequence[list[_ToolCallId]]) -> _ToolCallId | None:
    """Returns the call that a result answers; an answered call if the same result comes twice."""
    answered_call = None
    for calls in reversed(calls_by_message):
        for call in calls:
            if old_id in ("", call.old_id):
                if not call.is_answered:
                    return call
                answered_call = answered_call or call
    return answered_call


def _assign_result_id(
    message: OutgoingMessage, call: _ToolCallId | None, ids: _CallIdAllocator, *, name_results: bool
) -> None:
    old_id = _decode_id(message["tool_call_id"])
    new_id = ids.allocate(old_id) if call is None else call.new_id
    if new_id != old_id:
        message["tool_call_id"] = orjson.dumps(new_id)
    if call is not None:
        call.is_answered = True
        if name_results and is_empty_value(message["name"]) and not is_empty_value(call.name):
            message["name"] = call.name


def _decode_id(raw: bytes) -> str:
    return keep_text(decode_json_or(raw, None))


_EMPTY_ASSISTANT_MESSAGE: Final = b'{"role":"assistant","content":null}'


def split_tool_calls(messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    """Splits messages: first the text, then each call in a message of its own, followed by its result.

    Calls that are not all answered stay together.
    """
    split_messages: list[OutgoingMessage] = []
    start = 0
    while start < len(messages):
        end = start + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        results = list(messages[start + 1 : end])
        *text_messages, call_message = _split_text_from_calls(messages[start])
        split_messages += [*text_messages, *_pair_calls_with_results(call_message, results)]
        start = end
    return split_messages


def _split_text_from_calls(message: OutgoingMessage) -> list[OutgoingMessage]:
    """Splits a message with text and calls into two. Its other properties stay with the text."""
    if message.role != "assistant" or is_empty_value(message["tool_calls"]) or is_empty_value(message.content):
        return [message]
    call_message = OutgoingMessage(_EMPTY_ASSISTANT_MESSAGE)
    call_message["tool_calls"] = message["tool_calls"]
    message.replace_members({name: raw for name, raw in message.members.items() if name != "tool_calls"})
    return [message, call_message]


def _pair_calls_with_results(message: OutgoingMessage, results: list[OutgoingMessage]) -> Iterator[OutgoingMessage]:
    calls = parse_array_elements(message["tool_calls"])
    if message.role != "assistant" or len(calls) < 2 or not _has_all_results(message, results):
        yield from (message, *results)
        return
    for number, call in enumerate(calls):
        single_call_message = OutgoingMessage(message.raw if number == 0 else _EMPTY_ASSISTANT_MESSAGE)
        single_call_message["tool_calls"] = render_array([call])
        yield single_call_message
        call_id = (parse_object_members(call) or {}).get("id", NULL)
        yield results.pop(next(i for i, result in enumerate(results) if result["tool_call_id"] == call_id))
    yield from results


def _has_all_results(message: OutgoingMessage, results: Sequence[OutgoingMessage]) -> bool:
    result_ids = [result["tool_call_id"] for result in results]
    for call in message.tool_calls:
        if (call_id := call.get("id", NULL)) not in result_ids:
            return False
        result_ids.remove(call_id)
    return True
