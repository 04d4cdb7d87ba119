"""Cut the middle out of long messages: tool results first, then everything else but the newest user message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.context.draft import Draft, Replacement
from app.context.partition import RESULT_ROLES
from app.context.stages.excerpt import excerpt_of
from app.conversation.messages import LogMessage

SHORTEST_TOKENS = 48
"""No message is cut below this: less says nothing."""


def shorten_long_messages(draft: Draft) -> Draft:
    """Lower one cap for all long tool results until the view fits, then one for the other messages."""
    request = draft.scene.tail.newest_user
    shown = [
        message
        for message in draft.scene.tail.messages[draft.boundary_seq - draft.scene.tail.start_seq :]
        if request is None or message.seq != request.seq
    ]
    results = [message for message in shown if message.message.role in RESULT_ROLES]
    others = [message for message in shown if message.message.role not in RESULT_ROLES]
    before = draft.tokens
    for group in (results, others):
        if group and not draft.fits:
            draft = _cap(draft, group)
    if not draft.replaced:
        return draft
    return draft.noted("shortened", messages=len(draft.replaced), tokens=before - draft.tokens)


def _cap(draft: Draft, group: Sequence[LogMessage]) -> Draft:
    """The highest cap of a halving ladder under which the view fits; the lowest if none is low enough."""
    capped = draft
    for cap_tokens in _ladder(draft.scene.limit_tokens):
        saving = sum(max(0, message.tokens - cap_tokens) for message in group)
        if saving < draft.excess_tokens and cap_tokens > SHORTEST_TOKENS:
            continue
        capped = replace(draft, replaced={**draft.replaced, **_excerpts(draft, group, cap_tokens)})
        if capped.fits:
            break
    return capped


def _ladder(limit_tokens: int) -> Iterator[int]:
    cap_tokens = limit_tokens // 2
    while cap_tokens > SHORTEST_TOKENS:
        yield cap_tokens
        cap_tokens //= 2
    yield SHORTEST_TOKENS


def _excerpts(draft: Draft, group: Sequence[LogMessage], cap_tokens: int) -> dict[int, Replacement]:
    excerpts = {}
    for message in group:
        if message.tokens <= cap_tokens:
            continue
        excerpt = excerpt_of(message, cap_tokens, draft.scene.count)
        if excerpt.tokens < message.tokens:
            excerpts[message.seq] = excerpt
    return excerpts
