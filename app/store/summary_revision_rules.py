"""Says which fields of a summary belong to one revision of its text, and when a summary replaces another. Pure."""

from __future__ import annotations

from typing import Final

from app.conversation.conversation_types import Summary

REVISION_FIELDS: Final = (
    "revision",
    "text",
    "tokens",
    "kind",
    "model",
    "prompt_version",
    "created_at",
    "duration_ms",
    "usage",
)
"""Fields that each revision has of its own; the others belong to the summary's place in the log."""
REPLACEABLE_KINDS: Final = frozenset({"mechanical", "part"})
"""A summary of another kind over the same range replaces summaries of these kinds."""


def may_replace_summary(summary: Summary, stored: Summary) -> bool:
    """Whether a summary replaces the stored one over the same range."""
    return stored.kind in REPLACEABLE_KINDS and summary.kind not in REPLACEABLE_KINDS
