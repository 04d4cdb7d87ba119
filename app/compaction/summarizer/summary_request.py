"""What a summary is wanted of, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.compaction.part_summaries import LogPartSummaries
from app.compaction.summarizer.prompts import PromptVariant
from app.context.plan.outline import SummaryStyle
from app.context.plan.policy import ContextPolicy
from app.conversation.messages import LogMessage, Summary
from app.upstream.provider import ClientKey

SAME_MODEL = "same"
"""As `SummarizerPolicy.model`: the request's own."""


class NoUsableSummary(Exception):
    """The model answered, but not with a summary that can be used, or is not asked just now; the text says why."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What is to be summarized: log messages, or the chunks that are folded into one."""

    messages: Sequence[LogMessage]
    folded_summaries: Sequence[Summary]
    policy: ContextPolicy
    model: str
    """The model of the request that needs the summary."""
    limit_tokens: int
    """The most tokens that the summary may have."""
    replaced_tokens: int
    """Raw tokens of what it stands for."""
    encoding: str
    """In which `replaced_tokens` are counted."""
    client_key: ClientKey | None = None
    focus: str | None = None
    """What the caller asked to pay attention to."""
    style: SummaryStyle = "additive"
    previous_summary: Summary | None = None
    """The summary before this one, of a rolling summary or a checkpoint."""
    view_prefix: Sequence[bytes] = ()
    """JSON text of the messages of the last view up to the end of the range."""
    prefix_message_count: int = 0
    """How many of its last messages are in the range; 0: as many as there are `messages`."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields."""
    log_parts: LogPartSummaries | None = None
    """Of a checkpoint: summaries of parts of its log, read in place of messages where all cannot be read at once."""
    tenant: str = ""
    root: str = ""
    """Whose failures these are, if it fails."""

    @property
    def prompt_variant(self) -> PromptVariant:
        is_update = self.style == "checkpoint" and self.previous_summary is not None
        return PromptVariant(style=self.style, is_fold=bool(self.folded_summaries), is_update=is_update)

    @property
    def earlier_summaries(self) -> Sequence[Summary]:
        """Summaries that are read in place of messages."""
        if self.folded_summaries or self.previous_summary is None or self.style != "recursive":
            return self.folded_summaries
        return (self.previous_summary,)

    @property
    def allowed_tokens(self) -> int:
        """The longest summary that still gains what the policy asks for."""
        return int(self.replaced_tokens * (1 - self.policy.min_gain_ratio))


@dataclass(frozen=True, slots=True)
class GeneratedSummary:
    """An accepted summary; `model` is the one that wrote it, by its provider's name."""

    text: str
    model: str
    prompt_version: str
    duration_ms: int
    usage: Mapping[str, Any] | None = None
    """Sum over the calls that it took."""
