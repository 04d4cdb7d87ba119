"""Describes the input and the result of a compaction: jobs, sources of summaries, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import Boundary, SummaryRange, SummaryStyle
from app.context.plan.policy import ContextPolicy
from app.context.view.client_words import NO_WORDS, ClientWords
from app.conversation.api_keys import KeyBudget
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES
from app.upstream.provider_contract import ClientKey

NO_PREFIX: Final[tuple[Sequence[bytes], int]] = ((), 0)
CompactionOutcome = Literal["found", "made", "mechanical", "none"]


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Ranges of one conversation to be summarized, with everything that the work needs."""

    tenant: str
    root: str
    conversation_id: str
    log_tail: LogTail
    """Covers every range that is not a fold: the log after the last active summary; for checkpoints the whole log
    without
    masks; for a rolling summary the log after its base."""
    start_link: bytes
    """Link of the message before the tail; the tenant's seed if the tail begins at 0."""
    ranges: Sequence[SummaryRange]
    policy: ContextPolicy
    window: int
    """Context window in tokens of the model that will see the summaries; limits their size."""
    model: str
    """The model that the request names."""
    encoding: str
    """Name of the encoding that tokens are counted in."""
    available_summaries: Sequence[Summary] = ()
    """Contains at least the summaries that the ranges name, to be folded or as their base."""
    client_key: ClientKey | None = None
    api_key_id: str | None = None
    """The API key whose request needs the summaries. They count as its usage."""
    budget: KeyBudget | None = None
    """The budget of that key."""
    focus: str | None = None
    """What the summaries should pay attention to, in the client's words."""
    wait_seconds: float = 30.0
    """How long to wait for another process that makes the same summary."""
    view_prefixes: Mapping[int, tuple[Sequence[bytes], int]] = field(default_factory=dict)
    """By a range's `to_seq`: the JSON text of the last view's messages up to the end of the range, which the provider
    has in its cache, and how many of the last ones belong to the range, quotations included. A range without a prefix
    is summarized from a transcript."""
    conversation: Conversation | None = None
    """The conversation as it was before the tail was read; None if it is not stored."""
    client_words: ClientWords = NO_WORDS
    """What the summarizer reads in place of log messages."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields, as sent: with other tools the provider's cache would miss."""


def build_lease_key(from_link: bytes, *, is_fold: bool) -> str:
    """Builds the key of the lease for summaries that begin after the message with this link."""
    range_prefix, fold_prefix = SUMMARY_LEASE_PREFIXES
    return f"{fold_prefix if is_fold else range_prefix}{from_link.hex()}"


@dataclass(frozen=True, slots=True)
class SummarySource:
    """A range with the material for its summary, and the facts about both ends that the summary stores."""

    from_seq: int
    from_link: bytes
    to_link: bytes
    boundary: Boundary
    replaced_tokens: int
    messages: tuple[LogMessage, ...] = ()
    """The log messages to summarize, as they were first said; empty for a fold."""
    folded_summaries: tuple[Summary, ...] = ()
    """The summaries to fold; empty for any other range."""
    style: SummaryStyle = "additive"
    previous_summary: Summary | None = None
    """The summary before this one. A rolling summary is written from it instead of the log it covers; a checkpoint is
    only told that it exists."""
    view_prefix: Sequence[bytes] = ()
    prefix_message_count: int = 0
    """How many of the prefix's last messages belong to the range; 0 for as many as `messages` has."""
    reusable_after_seq: int = 0
    """A stored summary that begins where the range does and ends after this seq can be used instead of a new one."""

    @property
    def range_key(self) -> str:
        """Names the range within a root. Ranges with equal links at both ends have the same messages."""
        return f"{self.lease_key}:{self.to_link.hex()}"

    def matches_summary(self, summary: Summary) -> bool:
        """Whether a stored summary covers exactly this range, and is a fold if and only if this source is one."""
        ends = (summary.from_link, summary.to_link)
        return ends == (self.from_link, self.to_link) and bool(summary.folds) == bool(self.folded_summaries)

    @property
    def lease_key(self) -> str:
        """The key of the lease. Ranges that begin at the same message share one lease, wherever they end."""
        return build_lease_key(self.from_link, is_fold=bool(self.folded_summaries))


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a job."""

    summaries: tuple[Summary, ...]
    """The summaries in the order of the job's ranges; a range without a summary is left out."""
    has_run: bool
    """Whether a summary was written for this job, by this job's own task or by one that it waited for."""
    outcome: CompactionOutcome
    """`made`: by a model; `mechanical`: at least one without a model; `found`: all were stored; `none`: no summary."""
    duration_ms: int = 0
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    """Usage summed over the job's summarizer calls."""
    warnings: tuple[str, ...] = ()


def build_summary_sources(job: CompactionJob) -> list[SummarySource]:
    """Builds the source of each range of a job."""
    return [
        _build_fold_source(job, log_range) if log_range.folds else _build_range_source(job, log_range)
        for log_range in job.ranges
    ]


def _build_range_source(job: CompactionJob, log_range: SummaryRange) -> SummarySource:
    tail = job.log_tail
    last = tail.find_message(log_range.to_seq - 1)
    boundary = tail.build_boundary(log_range.to_seq)
    previous_summary = (
        next((summary for summary in job.available_summaries if summary.id == log_range.base), None)
        if log_range.base
        else None
    )
    rolling_summary = previous_summary if log_range.style == "recursive" else None
    read_from_seq = rolling_summary.to_seq if rolling_summary else log_range.from_seq
    assert tail.start_seq <= read_from_seq < log_range.to_seq <= tail.end_seq, "the tail does not hold the range"
    summary_tokens = rolling_summary.tokens if rolling_summary else 0
    view_prefix, prefix_message_count = job.view_prefixes.get(log_range.to_seq, NO_PREFIX)
    return SummarySource(
        from_seq=rolling_summary.from_seq if rolling_summary else log_range.from_seq,
        from_link=rolling_summary.from_link if rolling_summary else _find_link_before(job, log_range.from_seq),
        to_link=last.link,
        boundary=boundary,
        replaced_tokens=summary_tokens + boundary.tokens_total - tail.count_tokens_before(read_from_seq),
        messages=tuple(tail.find_message(seq) for seq in range(read_from_seq, log_range.to_seq)),
        style=log_range.style,
        previous_summary=previous_summary,
        view_prefix=view_prefix,
        prefix_message_count=prefix_message_count,
        reusable_after_seq=_find_reusable_after(job, log_range, previous_summary),
    )


def _find_link_before(job: CompactionJob, seq: int) -> bytes:
    return job.start_link if seq == job.log_tail.start_seq else job.log_tail.find_message(seq - 1).link


def _find_reusable_after(job: CompactionJob, log_range: SummaryRange, previous_summary: Summary | None) -> int:
    """Finds the seq after which a stored summary must end to be used instead of a new one.

    Another request may have planned with a few messages more or less, so an additive summary may end anywhere in the
    tail. All summaries of the whole log begin at the same message, so one of those must end after the previous one, or
    where the range ends if there is none.
    """
    if log_range.style == "additive":
        return job.log_tail.start_seq
    return previous_summary.to_seq if previous_summary else log_range.to_seq - 1


def _build_fold_source(job: CompactionJob, log_range: SummaryRange) -> SummarySource:
    """Builds the source of a fold: from the beginning of its first summary to the end of its last."""
    folded_ids = set(log_range.folds)
    folded_summaries = sorted(
        (summary for summary in job.available_summaries if summary.id in folded_ids), key=lambda summary: summary.to_seq
    )
    first, last = folded_summaries[0], folded_summaries[-1]
    return SummarySource(
        from_seq=first.from_seq,
        from_link=first.from_link,
        to_link=last.to_link,
        boundary=Boundary(last.to_seq, last.tokens_total, last.anchor_seq, last.anchor_tokens, last.through_turn),
        replaced_tokens=sum(summary.tokens for summary in folded_summaries),
        folded_summaries=tuple(folded_summaries),
        view_prefix=job.view_prefixes.get(log_range.to_seq, NO_PREFIX)[0],
        reusable_after_seq=last.to_seq,
    )
