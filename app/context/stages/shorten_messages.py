"""Cut the middle out of long messages: tool results first, then everything else but the newest user message."""

from __future__ import annotations

from collections.abc import Sequence

from app.context.stages.age_weights import level
from app.context.stages.draft import Draft
from app.context.stages.round_lines import RESULT_ROLES
from app.conversation.messages import LogMessage

SHORTEST_TOKENS = 48
"""No message is cut below this: less says nothing."""


def shorten_long_messages(draft: Draft) -> Draft:
    """Lower one cap for all long tool results until the view fits, then one for the other messages."""
    request = draft.scene.tail.newest_user
    shown = [entry for entry in draft.shown() if request is None or entry.seq != request.seq]
    results = [entry for entry in shown if entry.message.role in RESULT_ROLES]
    others = [entry for entry in shown if entry.message.role not in RESULT_ROLES]
    before = draft.tokens
    for group in (results, others):
        if group and not draft.fits:
            draft = _cap(draft, group)
    removed = before - draft.tokens
    return draft.noted("shortened", messages=len(draft.edits), tokens=removed) if removed else draft


def _cap(draft: Draft, group: Sequence[LogMessage]) -> Draft:
    """The highest cap under which the view fits; the lowest if none is low enough."""
    editing = draft.editing()
    sizes = [editing.tokens(entry) for entry in group]
    room_tokens = sum(sizes) - (draft.tokens - draft.scene.limit_tokens)
    capped = _excerpts(draft, group, max(SHORTEST_TOKENS, level(sizes, room_tokens)))
    return capped if capped.fits else _excerpts(capped, group, SHORTEST_TOKENS)


def _excerpts(draft: Draft, group: Sequence[LogMessage], cap_tokens: int) -> Draft:
    editing = draft.editing()
    for entry in group:
        editing.cap(entry, cap_tokens)
    return editing.draft()
