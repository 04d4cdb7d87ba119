"""Neighbouring messages of one role as one message, without losing a word. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.upstream.quirks.outgoing_message import (
    Outgoing,
    array_of,
    elements_of,
    is_empty,
    is_text,
    joined_content,
    joined_text,
)

_MERGEABLE: Final = frozenset({"system", "user", "assistant"})
_JOINED: Final = ("reasoning_content", "reasoning", "refusal")
_CONCATENATED: Final = ("tool_calls", "reasoning_details", "annotations")
_ONLY_ONCE: Final = ("function_call", "audio")
"""What one message has once: two messages that both have it stay two."""


def merge_neighbours(messages: list[Outgoing]) -> list[Outgoing]:
    """Calls go along with what was said before them; results, and messages of unknown roles, stand alone."""
    return [group[0] if len(group) == 1 else merged(group) for group in _neighbours(messages)]


def _neighbours(messages: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    group: list[Outgoing] = []
    for message in messages:
        if group and not (message.role in _MERGEABLE and message.role == group[0].role and _agree(group, message)):
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _agree(group: Sequence[Outgoing], message: Outgoing) -> bool:
    """Whether a message can be joined to a group without losing anything of either."""
    twice = (name for name in _ONLY_ONCE if not is_empty(message[name]))
    return all(map(_has_readable_lists, (*group, message))) and all(
        is_empty(other[name]) for name in twice for other in group
    )


def _has_readable_lists(message: Outgoing) -> bool:
    return all(is_empty(message[name]) or elements_of(message[name]) for name in _CONCATENATED)


def merged(group: Sequence[Outgoing]) -> Outgoing:
    """Messages of one role as one: the members of all, the first one's where they differ, except for a `name` that not
    all bear. Text is joined by blank lines, lists of blocks are put one after the other, each block as it is."""
    members: dict[str, bytes] = {}
    for message in reversed(group):
        members.update({name: raw for name, raw in message.members.items() if name not in members or not is_empty(raw)})
    members["content"] = joined_content([message.content for message in group])
    if len({message["name"] for message in group}) > 1:
        members.pop("name", None)
    for name in members.keys() & {*_JOINED, *_CONCATENATED}:
        values = [message[name] for message in group if not is_empty(message[name])]
        if len(values) > 1 and name in _CONCATENATED:
            members[name] = array_of([block for value in values for block in elements_of(value)])
        elif len(values) > 1 and all(map(is_text, values)):
            members[name] = joined_text(values, "\n\n")
    message = Outgoing(group[0].raw)
    message.replace(members)
    return message
