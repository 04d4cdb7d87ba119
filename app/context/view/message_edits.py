"""Edits of messages: what was done to each message, as data. The message's dialect does it. Pure.

A view is rendered anew for each request. The store keeps the operations that shortened a message, not its short text,
so the same message has the same bytes until the next cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from app.context.stages.tool_round_text import render_tool_round
from app.conversation.item import EditOperation, Item
from app.dialects.body.message import ChatMessage

EditKind = Literal["masked", "truncated", "cleared", "told"]


class Edit(msgspec.Struct, frozen=True):
    """What a view shows in place of a message."""

    seq: int
    kind: EditKind
    ops: tuple[EditOperation, ...]
    tokens: int
    """Raw count of what is shown; 0 if the edit of another message stands for this message, too."""
    saved_tokens: int
    """Raw count of the message less `tokens`."""


def render_edited_message(edit: Edit, find_message: Callable[[int], Item]) -> Item | None:
    """Returns the message as it is shown; None if the edit of another message stands for it."""
    message = find_message(edit.seq)
    name = edit.ops[0][0]
    if name == "gone":
        return None
    if name == "tell":
        _, count, chars = edit.ops[0]
        text = render_tool_round([find_message(seq) for seq in range(edit.seq, edit.seq + int(count))], int(chars))
        return ChatMessage.from_text("assistant", text)
    return message.edit(edit.ops)


def count_replaced_messages(edit: Edit) -> int:
    """Returns how many log messages the shown message stands for; 0 if the edit of another message stands for
    this one.
    """
    name, *arguments = edit.ops[0]
    if name == "gone":
        return 0
    return int(arguments[0]) if name == "tell" else 1


def select_whole_edits(edits: Iterable[Edit], is_kept: Callable[[int], bool]) -> tuple[Edit, ...]:
    """Returns the edits of messages that are kept. The edits of one tool round stand or fall together: a result whose
    call is hidden would make the provider refuse the request.
    """
    edits = tuple(edits)
    spans = (range(edit.seq, edit.seq + count_replaced_messages(edit)) for edit in edits)
    broken = {seq for span in spans if not all(map(is_kept, span)) for seq in span}
    return tuple(edit for edit in edits if edit.seq not in broken and is_kept(edit.seq))


def add_edit_operation(operations: Sequence[EditOperation], operation: EditOperation) -> tuple[EditOperation, ...]:
    """Returns the operations with one more; it replaces an earlier operation of the same name."""
    return (*(known for known in operations if known[0] != operation[0]), operation)
