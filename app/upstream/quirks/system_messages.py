"""Where a template takes a system message: anywhere, only as the first message, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.upstream.quirks.merge_messages import merged
from app.upstream.quirks.outgoing_message import Outgoing, is_empty, joined_content, text_of_parts

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
