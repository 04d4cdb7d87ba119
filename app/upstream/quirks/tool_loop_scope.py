"""Which assistant messages belong to the tool loop that is under way, and which to turns that called tools. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from app.upstream.quirks.outgoing_message import Outgoing

Scope = Literal["tool_loop", "tool_turns"]


def indexes_in(scope: Scope, messages: Sequence[Outgoing]) -> set[int]:
    """Indexes of the assistant messages from the newest user message on, and with `tool_turns` also of those in each
    earlier turn that called a tool."""
    found: set[int] = set()
    turn: list[int] = []
    calls = False
    for index, message in enumerate(messages):
        if message.role == "user":
            found.update(turn if calls and scope == "tool_turns" else ())
            turn, calls = [], False
        elif message.role == "assistant":
            turn.append(index)
            calls = calls or message.has_calls
    return found.union(turn)
