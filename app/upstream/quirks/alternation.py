"""Strict alternation, as templates check it: results and messages with calls aside, user and assistant take turns and a
user begins. Pure.

Sources: the templates `mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja` in llama.cpp and
`tool_chat_template_gemma3_pythonic.jinja` in vLLM ("Conversation roles must alternate user/assistant/…");
`validator.py` of mistral-common ("Unexpected role 'user' after role 'tool'"; an assistant has content or calls).
"""

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
    text_of_parts,
)

OPENING: Final = "Begin."
"""What a user says before a conversation that the assistant opened."""
BRIDGE: Final = "Noted."
"""What the assistant says to results which the user did not let it answer."""
_SAYS_NOTHING: Final = frozenset({"role", "content", "name"})


def alternating(messages: list[Outgoing]) -> list[Outgoing]:
    """Neighbours merged, assistant messages without any content left out, and missing turns filled in.

    No word is dropped or moved: a user who interrupts a tool call stands behind its results, with a word of the
    assistant between them, rather than inside a result.
    """
    return _bridged(merge_neighbours([message for message in messages if not _says_nothing(message)]))


def _says_nothing(message: Outgoing) -> bool:
    return message.role == "assistant" and all(
        name in _SAYS_NOTHING and (name != "content" or is_empty(raw))
        for name, raw in message.members.items()
        if not is_empty(raw)
    )


def _bridged(messages: Sequence[Outgoing]) -> list[Outgoing]:
    shown: list[Outgoing] = []
    awaits_assistant = False
    has_begun = False
    for message in messages:
        role = message.role
        if role == "user":
            if awaits_assistant:
                shown.append(Outgoing.saying("assistant", BRIDGE))
            awaits_assistant = True
        elif role not in SYSTEM_ROLES:
            if not has_begun:
                shown.append(Outgoing.saying("user", OPENING))
                awaits_assistant = True
            if role == "assistant" and not message.has_calls:
                awaits_assistant = False
        has_begun = has_begun or role not in SYSTEM_ROLES
        shown.append(message)
    return shown


SYSTEM_ROLES = frozenset({"system", "developer"})
_SYSTEM, _USER = b'"system"', b'"user"'


def developer_as_system(messages: Sequence[Outgoing]) -> None:
    for message in messages:
        if message.role == "developer":
            message["role"] = _SYSTEM


def led_by_system(messages: list[Outgoing]) -> list[Outgoing]:
    """All system and developer messages as one, in front.

    A text instead of a list wherever it is only text: several templates read no more than a list's first part.
    """
    systems = [message for message in messages if message.role in SYSTEM_ROLES]
    if not systems or (len(systems) == 1 and messages[0].role == "system"):
        return messages
    others = [message for message in messages if message.role not in SYSTEM_ROLES]
    developer_as_system(systems)
    first = merged(systems)
    first["content"] = joined_content([text_of_parts(message.content) or message.content for message in systems])
    return others if is_empty(first.content) else [first, *others]


def system_told_by_user(messages: list[Outgoing]) -> list[Outgoing]:
    """All system and developer messages at the head of the first message, which is a user's, if need be a new one."""
    messages = led_by_system(messages)
    if not messages or messages[0].role != "system":
        return messages
    first, *others = messages
    if is_empty(first.content):
        return others
    first["role"] = _USER
    if others and others[0].role == "user":
        return [merged([first, others[0]]), *others[1:]]
    return messages


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
