"""Leave summaries out: the oldest when all of them crowd out the conversation, all of them when nothing else helps."""

from __future__ import annotations

from dataclasses import replace

from app.context.stages.draft import Draft

SUMMARIES_SHARE = 0.5
"""Summaries may take this share of what instructions leave; beyond it the oldest go first."""


def forget_oldest_summaries(draft: Draft) -> Draft:
    """Keep the newest summaries within their share. Depends on nothing that grows with the log."""
    allowed = int((draft.scene.limit_tokens - draft.scene.instructions_tokens) * SUMMARIES_SHARE)
    return _keep_newest_within(draft, allowed)


def forget_all_summaries(draft: Draft) -> Draft:
    return _keep_newest_within(draft, 0)


def _keep_newest_within(draft: Draft, allowed_tokens: int) -> Draft:
    kept, tokens = len(draft.chunks), 0
    while kept and tokens + draft.chunks[kept - 1].tokens <= allowed_tokens:
        kept -= 1
        tokens += draft.chunks[kept].tokens
    if not kept:
        return draft
    return replace(draft, chunks=draft.chunks[kept:]).noted("summaries_left_out", count=kept, kept_tokens=tokens)
