"""Makes roles alternate as chat templates check it: user and assistant take turns, a user begins; results and messages
with calls do not count. Pure.

Sources: the templates `mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja` in llama.cpp and
`tool_chat_template_gemma3_pythonic.jinja` in vLLM ("Conversation roles must alternate user/assistant/…");
`validator.py` of mistral-common ("Unexpected role 'user' after role 'tool'"; an assistant has content or calls).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.upstream.quirks.outgoing_message import (
    OutgoingMessage,
    is_empty_value,
    join_contents,
    join_json_strings,
    join_text_parts,
    parse_array_elements,
    render_array,
)

OPENING_USER_TEXT: Final = "Begin."
"""Text of the user message that is put before a conversation which the assistant began."""
BRIDGING_ASSISTANT_TEXT: Final = "Noted."
"""Text of the assistant message that is put between results and a user message which interrupted them."""
_FIELDS_WITHOUT_MEANING: Final = frozenset({"role", "content", "name"})


def alternate_roles(messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
    """Merges neighbours, leaves out assistant messages without any content, and inserts missing turns.

    No word is dropped or moved. A user who interrupts a tool call stays after its results, with a word of the assistant
    between, rather than inside a result.
    """
    return _insert_missing_turns(
        merge_adjacent_messages([message for message in messages if not _is_blank_answer(message)])
    )


def _is_blank_answer(message: OutgoingMessage) -> bool:
    return message.role == "assistant" and all(
        name in _FIELDS_WITHOUT_MEANING and (name != "content" or is_empty_value(raw))
        for name, raw in message.members.items()
        if not is_empty_value(raw)
    )


def _insert_missing_turns(messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    alternated: list[OutgoingMessage] = []
    awaits_assistant = False
    has_begun = False
    for message in messages:
        role = message.role
        if role == "user":
            if awaits_assistant:
                alternated.append(OutgoingMessage.from_text("assistant", BRIDGING_ASSISTANT_TEXT))
            awaits_assistant = True
        elif role not in SYSTEM_ROLES:
            # The assistant, or a result, would begin: templates want a user first.
            if not has_begun:
                alternated.append(OutgoingMessage.from_text("user", OPENING_USER_TEXT))
                awaits_assistant = True
            if role == "assistant" and not message.calls_tools:
                awaits_assistant = False
        has_begun = has_begun or role not in SYSTEM_ROLES
        alternated.append(message)
    return alternated


SYSTEM_ROLES = frozenset({"system", "developer"})
_SYSTEM, _USER = b'"system"', b'"user"'


def rename_developer_to_system(messages: Sequence[OutgoingMessage]) -> None:
    for message in messages:
        if message.role == "developer":
            message["role"] = _SYSTEM


def merge_system_messages_first(messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
    """Merges all system and developer messages into one, in front.

    Its content is a text if all parts are text: several templates read only a list's first part.
    """
    systems = [message for message in messages if message.role in SYSTEM_ROLES]
    if not systems or (len(systems) == 1 and messages[0].role == "system"):
        return messages
    others = [message for message in messages if message.role not in SYSTEM_ROLES]
    rename_developer_to_system(systems)
    first = merge_messages(systems)
    first["content"] = join_contents([join_text_parts(message.content) or message.content for message in systems])
    return others if is_empty_value(first.content) else [first, *others]


def move_system_into_user_message(messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
    """Puts all system and developer messages at the head of the first message if that is a user's, else into a new user
    message in front.
    """
    messages = merge_system_messages_first(messages)
    if not messages or messages[0].role != "system":
        return messages
    first, *others = messages
    if is_empty_value(first.content):
        return others
    first["role"] = _USER
    if others and others[0].role == "user":
        return [merge_messages([first, others[0]]), *others[1:]]
    return messages


_MERGEABLE_ROLES: Final = frozenset({"system", "user", "assistant"})
_TEXT_FIELDS: Final = ("reasoning_content", "reasoning", "refusal")
_LIST_FIELDS: Final = ("tool_calls", "reasoning_details", "annotations")
_UNMERGEABLE_FIELDS: Final = ("function_call", "audio")
"""Fields that a message can have only once. Two messages that both have one are not merged."""


def merge_adjacent_messages(messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
    """Merges neighbours of one role. Calls are merged with the text before them; results and messages of unknown roles
    stay alone.
    """
    return [group[0] if len(group) == 1 else merge_messages(group) for group in _group_mergeable(messages)]


def _group_mergeable(messages: Sequence[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    group: list[OutgoingMessage] = []
    for message in messages:
        if group and not (
            message.role in _MERGEABLE_ROLES and message.role == group[0].role and _can_merge(group, message)
        ):
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _can_merge(group: Sequence[OutgoingMessage], message: OutgoingMessage) -> bool:
    """Says whether a message can be merged into a group without losing anything of either."""
    single_fields = (name for name in _UNMERGEABLE_FIELDS if not is_empty_value(message[name]))
    return all(map(_has_parsable_lists, (*group, message))) and all(
        is_empty_value(other[name]) for name in single_fields for other in group
    )


def _has_parsable_lists(message: OutgoingMessage) -> bool:
    return all(is_empty_value(message[name]) or parse_array_elements(message[name]) for name in _LIST_FIELDS)


def merge_messages(group: Sequence[OutgoingMessage]) -> OutgoingMessage:
    """Merges messages of one role. Where their members differ, the first message's win; a `name` that not all share is
    left out. Texts are joined by blank lines, lists are concatenated, each block as it is.
    """
    members: dict[str, bytes] = {}
    for message in reversed(group):
        members.update(
            {name: raw for name, raw in message.members.items() if name not in members or not is_empty_value(raw)}
        )
    members["content"] = join_contents([message.content for message in group])
    if len({message["name"] for message in group}) > 1:
        members.pop("name", None)
    for name in members.keys() & {*_TEXT_FIELDS, *_LIST_FIELDS}:
        values = [message[name] for message in group if not is_empty_value(message[name])]
        if len(values) > 1 and name in _LIST_FIELDS:
            members[name] = render_array([block for value in values for block in parse_array_elements(value)])
        elif len(values) > 1 and all(one[:1] == b'"' for one in values):
            members[name] = join_json_strings(values, "\n\n")
    message = OutgoingMessage(group[0].raw)
    message.replace_members(members)
    return message
