"""Strict alternation, as templates check it: results and messages with calls aside, user and assistant take turns and a
user begins. Pure.

Sources: the templates `mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja` in llama.cpp and
`tool_chat_template_gemma3_pythonic.jinja` in vLLM ("Conversation roles must alternate user/assistant/…");
`validator.py` of mistral-common ("Unexpected role 'user' after role 'tool'"; an assistant has content or calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.upstream.quirks.merge_messages import merge_neighbours
from app.upstream.quirks.outgoing_message import Outgoing, is_empty
from app.upstream.quirks.system_messages import SYSTEM_ROLES

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
