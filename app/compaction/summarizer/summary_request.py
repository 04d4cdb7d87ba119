"""Describes the input and the result of the summarizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.compaction.part_summaries import LogPartSummaries
from app.compaction.summarizer.prompts import PromptVariant
from app.context.plan.outline import SummaryStyle
from app.context.plan.policy import ContextPolicy
from app.conversation.api_keys import KeyBudget
from app.conversation.conversation_types import LogMessage, Summary
from app.upstream.provider_contract import ClientKey

SAME_MODEL = "same"
"""The value of `SummarizerPolicy.model` that means the request's own model."""


class NoUsableSummary(Exception):
    """The model's answer is not a usable summary, or the model is backing off. The message says why."""


class EmptySummary(NoUsableSummary):
    """The model's answer says nothing about what it should summarize: a refusal, or an empty phrase."""

    def __init__(self) -> None:
        super().__init__("the answer says nothing about the messages that it replaces")


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The material of a summary, log messages or summaries to fold, and the limits of the summary."""

    messages: Sequence[LogMessage]
    folded_summaries: Sequence[Summary]
    policy: ContextPolicy
    model: str
    """The model of the request that needs the summary."""
    limit_tokens: int
    """The most tokens that the summary may have."""
    replaced_tokens: int
    """Raw tokens of the material that the summary replaces."""
    encoding: str
    """The encoding in which `replaced_tokens` are counted."""
    client_key: ClientKey | None = None
    api_key_id: str | None = None
    """The API key whose usage the calls are."""
    budget: KeyBudget | None = None
    """The budget of that key."""
    focus: str | None = None
    """What the summary should pay attention to, in the client's words."""
    style: SummaryStyle = "additive"
    previous_summary: Summary | None = None
    """The summary before this one, for a rolling summary or a checkpoint."""
    view_prefix: Sequence[bytes] = ()
    """JSON text of the messages of the last view up to the end of the range."""
    prefix_message_count: int = 0
    """How many of the prefix's last messages belong to the range; 0 for as many as `messages` has."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields."""
    log_parts: LogPartSummaries | None = None
    """For a checkpoint: the part summaries of its log, read instead of messages if the log is too long for one call."""
    tenant: str = ""
    root: str = ""
    """The conversation's root. Failures are counted for `tenant` and `root`."""

    @property
    def prompt_variant(self) -> PromptVariant:
        is_update = self.style == "checkpoint" and self.previous_summary is not None
        return PromptVariant(style=self.style, is_fold=bool(self.folded_summaries), is_update=is_update)

    @property
    def earlier_summaries(self) -> Sequence[Summary]:
        """The summaries that are read instead of messages."""
        if self.folded_summaries or self.previous_summary is None or self.style != "recursive":
            return self.folded_summaries
        return (self.previous_summary,)

    @property
    def max_tokens_with_gain(self) -> int:
        """The most tokens with which the summary still saves the policy's `min_gain_ratio`."""
        return int(self.replaced_tokens * (1 - self.policy.min_gain_ratio))


@dataclass(frozen=True, slots=True)
class GeneratedSummary:
    """An accepted summary; `model` is the provider's name of the model that wrote it."""

    text: str
    model: str
    prompt_version: str
    duration_ms: int
    usage: Mapping[str, Any] | None = None
    """Usage summed over all calls for this summary."""
