"""Parallel calls told one after the other, for templates that take one call a message (Llama 3.1: "This model only
supports single tool-calls at once!"). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.upstream.quirks.outgoing import Outgoing, array_of, elements_of, members_of


def calls_apart(messages: Sequence[Outgoing]) -> list[Outgoing]:
    """Each call in a message of its own, with its result behind it; whatever was said stands with the first.

    Calls that are not all answered stay together.
    """
    shown: list[Outgoing] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        end = place + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        shown += _apart(message, list(messages[place + 1 : end]))
        place = end
    return shown


def _apart(message: Outgoing, results: list[Outgoing]) -> Iterator[Outgoing]:
    calls = elements_of(message["tool_calls"])
    if message.role != "assistant" or len(calls) < 2 or not _all_answered(message, results):
        yield from (message, *results)
        return
    for number, call in enumerate(calls):
        one = Outgoing(message.raw if number == 0 else b'{"role":"assistant","content":null}')
        one["tool_calls"] = array_of([call])
        yield one
        wanted = (members_of(call) or {}).get("id")
        yield results.pop(next(i for i, result in enumerate(results) if result["tool_call_id"] == wanted))
    yield from results


def _all_answered(message: Outgoing, results: Sequence[Outgoing]) -> bool:
    answered = sorted(result["tool_call_id"] for result in results)
    for call in message.calls:
        if call.get("id") not in answered:
            return False
        answered.remove(call["id"])
    return True
