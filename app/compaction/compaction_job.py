"""What a compaction is asked and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import Boundary, SummaryRange, SummaryStyle
from app.context.plan.policy import ContextPolicy
from app.conversation.messages import Conversation, LogMessage, Summary
from app.store.contract import SUMMARY_LEASE_PREFIXES
from app.upstream.provider import ClientKey

CompactionOutcome = Literal["found", "made", "mechanical", "none"]


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Ranges of one conversation that are to become chunks."""

    tenant: str
    root: str
    conversation_id: str
    log_tail: LogTail
    """Covers every range that is no fold: the log after the last active chunk; for checkpoints all of it, un-masked;
    for a rolling summary what follows its base."""
    start_link: bytes
    """Link of the message before the tail; the tenant's seed when it begins at 0."""
    ranges: Sequence[SummaryRange]
    policy: ContextPolicy
    window: int
    """Context window of the model that the chunks are made for: bounds their size."""
    model: str
    """The model that the request asks for."""
    encoding: str
    """Name of the encoding that tokens are counted in."""
    available_summaries: Sequence[Summary] = ()
    """Has at least the chunks that ranges name, to fold or as their base."""
    client_key: ClientKey | None = None
    focus: str | None = None
    """What the summaries should pay attention to."""
    wait_seconds: float = 30.0
    """How long to wait for somebody else who is making the same chunk."""
    view_prefixes: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """By a range's `to_seq`: the JSON text of the messages of the last view up to there. A provider that has seen them
    reads them from its cache. A range without one is told as a transcript."""
    prefix_message_counts: Mapping[int, int] = field(default_factory=dict)
    """By a range's `to_seq`: how many of the last messages of its prefix stand in the range, quotations among them."""
    conversation: Conversation | None = None
    """As it stood before the tail was read; None: nothing of it is stored."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields, as sent: tools are bound as they were, or the cache is missed."""


def build_lease_key(from_link: bytes, *, is_fold: bool) -> str:
    """The key of the lease under which summaries are made that begin behind a message."""
    range_prefix, fold_prefix = SUMMARY_LEASE_PREFIXES
    return f"{fold_prefix if is_fold else range_prefix}{from_link.hex()}"


@dataclass(frozen=True, slots=True)
class SummarySource:
    """A range with everything that its chunk must remember of its ends."""

    from_seq: int
    from_link: bytes
    to_link: bytes
    to_skeleton: bytes | None
    boundary: Boundary
    replaced_tokens: int
    messages: tuple[LogMessage, ...] = ()
    """What is to be summarized …"""
    folded_summaries: tuple[Summary, ...] = ()
    """… or the chunks that are folded."""
    style: SummaryStyle = "additive"
    previous_summary: Summary | None = None
    """The summary before this one: read in place of the log that it covers by a rolling summary, known to be there by a
    checkpoint."""
    view_prefix: Sequence[bytes] = ()
    prefix_message_count: int = 0
    """How many of the prefix's last messages are in the range; 0: as many as there are messages."""
    reusable_after_seq: int = 0
    """A stored chunk that ends beyond this, and begins where the range does, is as good as a new one."""

    @property
    def range_key(self) -> str:
        """Names the range among all of a root: two ranges with the same links hold the same messages."""
        return f"{self.lease_key}:{self.to_link.hex()}"

    def matches_summary(self, summary: Summary) -> bool:
        """Whether a stored chunk is over exactly this range, and a fold exactly if this is one."""
        ends = (summary.from_link, summary.to_link)
        return ends == (self.from_link, self.to_link) and bool(summary.folds) == bool(self.folded_summaries)

    @property
    def lease_key(self) -> str:
        """One holder for all ranges that begin at the same place, whatever their end."""
        return build_lease_key(self.from_link, is_fold=bool(self.folded_summaries))


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What came of a job."""

    summaries: tuple[Summary, ...]
    """In the order of the job's ranges; a range for which nothing could be made has none."""
    has_run: bool
    """Whether a summary was written, or waited for, on behalf of this job."""
    outcome: CompactionOutcome
    """`made` by a model, `mechanical` at least in part, all `found` in the store, or `none`."""
    duration_ms: int = 0
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    """Sum over the summary calls of this job."""
    warnings: tuple[str, ...] = ()


def build_sources(job: CompactionJob) -> list[SummarySource]:
    """Where each range of a job begins and ends."""
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
    return SummarySource(
        from_seq=rolling_summary.from_seq if rolling_summary else log_range.from_seq,
        from_link=rolling_summary.from_link if rolling_summary else _find_link_before(job, log_range.from_seq),
        to_link=last.link,
        to_skeleton=last.skeleton if last.in_skeleton else None,
        boundary=boundary,
        replaced_tokens=summary_tokens + boundary.tokens_total - tail.count_tokens_before(read_from_seq),
        messages=tuple(tail.find_message(seq) for seq in range(read_from_seq, log_range.to_seq)),
        style=log_range.style,
        previous_summary=previous_summary,
        view_prefix=job.view_prefixes.get(log_range.to_seq, ()),
        prefix_message_count=job.prefix_message_counts.get(log_range.to_seq, 0),
        reusable_after_seq=_find_reusable_after(job, log_range, previous_summary),
    )


def _find_link_before(job: CompactionJob, seq: int) -> bytes:
    return job.start_link if seq == job.log_tail.start_seq else job.log_tail.find_message(seq - 1).link


def _find_reusable_after(job: CompactionJob, log_range: SummaryRange, previous_summary: Summary | None) -> int:
    """Others may have planned with a message more or less, so the end of a stretch is not looked at closely. A summary
    of everything so far begins where all before it began: it must reach beyond the last, or be the very one."""
    if log_range.style == "additive":
        return job.log_tail.start_seq
    return previous_summary.to_seq if previous_summary else log_range.to_seq - 1


def _build_fold_source(job: CompactionJob, log_range: SummaryRange) -> SummarySource:
    """A fold spans the chunks that it names, from the beginning of the first to the end of the last."""
    folded_ids = set(log_range.folds)
    folded_summaries = sorted(
        (summary for summary in job.available_summaries if summary.id in folded_ids), key=lambda chunk: chunk.to_seq
    )
    first, last = folded_summaries[0], folded_summaries[-1]
    return SummarySource(
        from_seq=first.from_seq,
        from_link=first.from_link,
        to_link=last.to_link,
        to_skeleton=last.to_skeleton,
        boundary=Boundary(last.to_seq, last.tokens_total, last.anchor_seq, last.anchor_tokens, last.through_turn),
        replaced_tokens=sum(chunk.tokens for chunk in folded_summaries),
        folded_summaries=tuple(folded_summaries),
        view_prefix=job.view_prefixes.get(log_range.to_seq, ()),
        reusable_after_seq=last.to_seq,
    )


def sum_usages(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Usage objects added up, details included; None for none."""
    if not usages:
        return None
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, Mapping):
                total[name] = sum_usages([total.get(name) or {}, value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total
