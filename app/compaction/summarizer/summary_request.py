"""Describes the input and the result of the summarizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.compaction.compaction_job import CompactionJob, SummarySource
from app.compaction.part_summaries import LogPartSummaries
from app.compaction.summarizer.prompts import PromptVariant
from app.conversation.conversation_types import LogMessage, Summary

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
    """A range to be summarized, with the words that its summarizer reads, and the limit of the summary."""

    job: CompactionJob
    source: SummarySource
    messages: Sequence[LogMessage]
    """The log messages of the source in the client's words."""
    limit_tokens: int
    """The most tokens that the summary may have."""
    log_parts: LogPartSummaries | None = None
    """For a checkpoint: the part summaries of its log, read instead of messages if the log is too long for one call."""

    @property
    def prompt_variant(self) -> PromptVariant:
        is_update = self.source.style == "checkpoint" and self.source.previous_summary is not None
        return PromptVariant(style=self.source.style, is_fold=bool(self.source.folded_summaries), is_update=is_update)

    @property
    def earlier_summaries(self) -> Sequence[Summary]:
        """The summaries that are read instead of messages."""
        if self.source.folded_summaries or self.source.previous_summary is None or self.source.style != "recursive":
            return self.source.folded_summaries
        return (self.source.previous_summary,)

    @property
    def max_tokens_with_gain(self) -> int:
        """The most tokens with which the summary still saves the policy's `min_gain_ratio`."""
        return int(self.source.replaced_tokens * (1 - self.job.policy.compaction.min_gain_ratio))


@dataclass(frozen=True, slots=True)
class GeneratedSummary:
    """An accepted summary; `model` is the provider's name of the model that wrote it."""

    text: str
    model: str
    prompt_version: str
    duration_ms: int
    usage: Mapping[str, Any] | None = None
    """Usage summed over all calls for this summary."""
