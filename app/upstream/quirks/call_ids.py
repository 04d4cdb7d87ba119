"""Ids of tool calls, in calls and results alike, and the names of results. Pure.

What stands before a call decides its id, so that a conversation that grows keeps the ids it has and prompt caches hold.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import orjson

from app.upstream.quirks.outgoing_message import (
    NULL,
    Outgoing,
    array_of,
    decoded,
    elements_of,
    is_empty,
    members_of,
    name_of_call,
    object_of,
)

IdForm = Literal["unique", "alnum9"]

ALNUM9: Final = re.compile(r"[a-zA-Z0-9]{9}\Z")
"""What Mistral takes: `MistralRequestValidatorV3` in mistral-common."""
_ALPHABET: Final = string.digits + string.ascii_letters


class _Call:
    """A tool call that its result is paired with."""

    __slots__ = ("is_answered", "name", "new_id", "old_id")

    def __init__(self, old_id: str, new_id: str, name: bytes) -> None:
        self.old_id, self.new_id, self.name = old_id, new_id, name
        self.is_answered = False


class _Ids:
    """Gives each call an id of its own."""

    def __init__(self, form: IdForm | None) -> None:
        self._form = form
        self._taken: set[str] = set()
        self._uses: Counter[str] = Counter()

    def next(self, old_id: str) -> str:
        use = self._uses[old_id]
        self._uses[old_id] += 1
        new_id = next(candidate for candidate in self._candidates(old_id, use) if candidate not in self._taken)
        if self._form is not None:
            self._taken.add(new_id)
        return new_id

    def _candidates(self, old_id: str, use: int) -> Iterator[str]:
        if self._form is None or (old_id and (self._form == "unique" or ALNUM9.match(old_id))):
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


def name_calls(messages: Sequence[Outgoing], form: IdForm | None, *, name_results: bool) -> None:
    """Give calls ids of a form (None: leave them), their results the same ones, and results the names of their calls.

    A result belongs to the first unanswered call of its id in the newest message that has one; without an id, to the
    first unanswered call at all. A result without any call has an id made from its own.
    """
    ids = _Ids(form)
    rounds: list[list[_Call]] = []
    for message in messages:
        if message.role == "assistant" and not is_empty(message["tool_calls"]):
            rounds.append(_renamed_calls(message, ids))
        elif message.role == "tool":
            _settle(message, _call_of(_id_in(message["tool_call_id"]), rounds), ids, name_results=name_results)


def _renamed_calls(message: Outgoing, ids: _Ids) -> list[_Call]:
    calls: list[_Call] = []
    elements = elements_of(message["tool_calls"])
    for place, element in enumerate(elements):
        if (members := members_of(element)) is None:
            continue
        old_id = _id_in(members.get("id", NULL))
        call = _Call(old_id, ids.next(old_id), name_of_call(members))
        calls.append(call)
        if call.new_id != old_id:
            elements[place] = object_of({**members, "id": orjson.dumps(call.new_id)})
    if any(call.new_id != call.old_id for call in calls):
        message["tool_calls"] = array_of(elements)
    return calls


def _call_of(old_id: str, rounds: Sequence[list[_Call]]) -> _Call | None:
    """The call that a result answers; an answered one, where the same result comes twice."""
    answered = None
    for calls in reversed(rounds):
        for call in calls:
            if old_id in ("", call.old_id):
                if not call.is_answered:
                    return call
                answered = answered or call
    return answered


def _settle(message: Outgoing, call: _Call | None, ids: _Ids, *, name_results: bool) -> None:
    old_id = _id_in(message["tool_call_id"])
    new_id = ids.next(old_id) if call is None else call.new_id
    if new_id != old_id:
        message["tool_call_id"] = orjson.dumps(new_id)
    if call is not None:
        call.is_answered = True
        if name_results and is_empty(message["name"]) and not is_empty(call.name):
            message["name"] = call.name


def _id_in(raw: bytes) -> str:
    value = decoded(raw)
    return value if isinstance(value, str) else ""


_BARE: Final = b'{"role":"assistant","content":null}'


def calls_apart(messages: Sequence[Outgoing]) -> list[Outgoing]:
    """What was said, then each call in a message of its own, with its result behind it.

    Calls that are not all answered stay together.
    """
    shown: list[Outgoing] = []
    place = 0
    while place < len(messages):
        end = place + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        results = list(messages[place + 1 : end])
        *said, calling = _said_apart(messages[place])
        shown += [*said, *_apart(calling, results)]
        place = end
    return shown


def _said_apart(message: Outgoing) -> list[Outgoing]:
    """A message that speaks and calls as two; its other properties stay with the words."""
    if message.role != "assistant" or is_empty(message["tool_calls"]) or is_empty(message.content):
        return [message]
    calling = Outgoing(_BARE)
    calling["tool_calls"] = message["tool_calls"]
    message.replace({name: raw for name, raw in message.members.items() if name != "tool_calls"})
    return [message, calling]


def _apart(message: Outgoing, results: list[Outgoing]) -> Iterator[Outgoing]:
    calls = elements_of(message["tool_calls"])
    if message.role != "assistant" or len(calls) < 2 or not _all_answered(message, results):
        yield from (message, *results)
        return
    for number, call in enumerate(calls):
        one = Outgoing(message.raw if number == 0 else _BARE)
        one["tool_calls"] = array_of([call])
        yield one
        wanted = (members_of(call) or {}).get("id", NULL)
        yield results.pop(next(i for i, result in enumerate(results) if result["tool_call_id"] == wanted))
    yield from results


def _all_answered(message: Outgoing, results: Sequence[Outgoing]) -> bool:
    answered = [result["tool_call_id"] for result in results]
    for call in message.calls:
        if (wanted := call.get("id", NULL)) not in answered:
            return False
        answered.remove(wanted)
    return True
