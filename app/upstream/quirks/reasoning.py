"""Reasoning that goes back to the model: all of it, none of it, or what the model still builds on. Pure.

Whole fields and whole parts are left out or stay; what stays is never touched, because signed and encrypted reasoning
is refused once a byte of it has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from app.conversation.canonical_form import REASONING_PARTS
from app.upstream.quirks.outgoing_message import Outgoing, array_of, decoded, elements_of, members_of

REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_details")


def without_reasoning(messages: Sequence[Outgoing], kept: Collection[int]) -> None:
    """Take the reasoning out of all assistant messages but those at the indexes in `kept`."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index not in kept:
            message.replace({name: raw for name, raw in message.members.items() if name not in REASONING_FIELDS})
            _drop_parts(message)


def _drop_parts(message: Outgoing) -> None:
    parts = elements_of(message.content)
    left = [part for part in parts if decoded((members_of(part) or {}).get("type", b"null")) not in REASONING_PARTS]
    if len(left) < len(parts):
        message["content"] = array_of(left) if left else b'""'
