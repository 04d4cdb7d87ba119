"""Context policies: how a view is made when a conversation outgrows its window. Parameters only, no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class SummarizerPolicy:
    """How the old part of a conversation is summarized.

    `model` is the model that writes summaries, ``same`` for the request's own. `prompt` replaces the built-in
    instruction. `max_summary_tokens` bounds each summary.
    """

    model: str = "same"
    max_summary_tokens: int = 2048
    prompt: str | None = None
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Parameters of policy `additive`; ratios are of the context window unless said otherwise."""

    name: str = "additive"
    kind: Literal["additive"] = "additive"
    threshold_ratio: float = 0.7
    """Compaction starts when the estimated prompt is above this share …"""
    token_floor: int = 4096
    """… and above this many tokens."""
    buffer_turns: int = 4
    """How many of the last turns stay verbatim, if they fit."""
    buffer_max_ratio: float = 0.3
    """The most that they may take."""
    reserve_ratio: float = 0.05
    """Kept free for the answer, on top of what the request asks for."""
    fold_ratio: float = 0.3
    """Chunks above this share are folded into one."""
    regrow_ratio: float = 0.5
    """A view goes back before the boundary of the last one only when that takes less than this share."""
    min_gain_ratio: float = 0.1
    """A compaction must make the view at least this share smaller."""
    summarizer: SummarizerPolicy = field(default_factory=SummarizerPolicy)
