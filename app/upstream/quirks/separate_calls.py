"""Calls told one after the other, and apart from what is said beside them, for templates that take one call a message
and show nothing else of it (Llama 3.1: "This model only supports single tool-calls at once!"). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.upstream.quirks.outgoing_message import NULL, Outgoing, array_of, elements_of, is_empty, members_of

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
