"""Which fields of a chunk belong to one of its texts and which to its place in the log. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from app.conversation.messages import Summary

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
"""What each revision has of its own."""
REPLACEABLE_KINDS: Final = frozenset({"mechanical", "part"})
"""Another summary over the same range takes the place of these."""


def apply_revision(summary: Summary, revision: Summary) -> Summary:
    """A chunk as it is with the text of another revision."""
    return replace(summary, **{name: getattr(revision, name) for name in REVISION_FIELDS})


def may_replace(summary: Summary, stored: Summary) -> bool:
    """Whether a chunk takes the place of one over the same range."""
    return stored.kind in REPLACEABLE_KINDS and summary.kind not in REPLACEABLE_KINDS


def number_next_revision(stored: Summary, summary: Summary) -> Summary:
    """A chunk that takes the place of another: its next revision if both are the same summary."""
    return replace(summary, revision=stored.revision + 1) if stored.id == summary.id else summary
