"""Which fields of a chunk belong to one of its texts and which to its place in the log. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from app.conversation.messages import Chunk

REVISED: Final = (
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
REPLACED_KINDS: Final = frozenset({"mechanical", "part"})
"""Another summary over the same range takes the place of these."""


def revised(chunk: Chunk, text: Chunk) -> Chunk:
    """A chunk as it is with the text of another revision."""
    return replace(chunk, **{name: getattr(text, name) for name in REVISED})


def replaces(chunk: Chunk, known: Chunk) -> bool:
    """Whether a chunk takes the place of one over the same range."""
    return known.kind in REPLACED_KINDS and chunk.kind not in REPLACED_KINDS


def succeeding(known: Chunk, chunk: Chunk) -> Chunk:
    """A chunk that takes the place of another: its next revision if both are the same summary."""
    return replace(chunk, revision=known.revision + 1) if known.id == chunk.id else chunk
