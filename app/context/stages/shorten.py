"""Cut the middle out of long messages: tool results first, then everything else but the newest user message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.context.draft import Draft
from app.context.rounds import RESULT_ROLES
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
    """The highest cap of a halving ladder under which the view fits; the lowest if none is low enough."""
    capped = draft
    excess_tokens = draft.tokens - draft.scene.limit_tokens
    for cap_tokens in _ladder(draft.scene.limit_tokens):
        saving = sum(max(0, entry.tokens - cap_tokens) for entry in group)
        if saving < excess_tokens and cap_tokens > SHORTEST_TOKENS:
            continue
        capped = _excerpts(draft, group, cap_tokens)
        if capped.fits:
            break
    return capped


def _ladder(limit_tokens: int) -> Iterator[int]:
    cap_tokens = limit_tokens // 2
    while cap_tokens > SHORTEST_TOKENS:
        yield cap_tokens
        cap_tokens //= 2
    yield SHORTEST_TOKENS


def _excerpts(draft: Draft, group: Sequence[LogMessage], cap_tokens: int) -> Draft:
    editing = draft.editing()
    for entry in group:
        editing.cap(entry, cap_tokens)
    return editing.draft()
