"""What a compaction is asked and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.context.plan.log_cuts import Tail
from app.context.plan.outline import Boundary, Range, Style
from app.context.plan.policy import Policy
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.store.contract import RANGE_LEASES
from app.upstream.provider import ClientKey

Outcome = Literal["found", "made", "mechanical", "none"]


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Ranges of one conversation that are to become chunks."""

    tenant: str
    root: str
    conversation_id: str
    tail: Tail
    """Covers every range that is no fold: the log after the last active chunk; for checkpoints all of it, un-masked;
    for a rolling summary what follows its base."""
    start_link: bytes
    """Link of the message before the tail; the tenant's seed when it begins at 0."""
    ranges: Sequence[Range]
    policy: Policy
    window: int
    """Context window of the model that the chunks are made for: bounds their size."""
    model: str
    """The model that the request asks for."""
    encoding: str
    """Name of the encoding that tokens are counted in."""
    folded: Sequence[Chunk] = ()
    """Has at least the chunks that ranges name, to fold or as their base."""
    client_key: ClientKey | None = None
    focus: str | None = None
    """What the summaries should pay attention to."""
    wait_seconds: float = 30.0
    """How long to wait for somebody else who is making the same chunk."""
    prefixes: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """By a range's `to_seq`: the JSON text of the messages of the last view up to there. A provider that has seen them
    reads them from its cache. A range without one is told as a transcript."""
    meant: Mapping[int, int] = field(default_factory=dict)
    """By a range's `to_seq`: how many of the last messages of its prefix stand in the range, quotations among them."""
    conversation: Conversation | None = None
    """As it stood before the tail was read; None: nothing of it is stored."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields, as sent: tools are bound as they were, or the cache is missed."""


def lease_key_of(from_link: bytes, *, is_fold: bool) -> str:
    """The key of the lease under which summaries are made that begin behind a message."""
    in_range, in_fold = RANGE_LEASES
    return f"{in_fold if is_fold else in_range}{from_link.hex()}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A range with everything that its chunk must remember of its ends."""

    from_seq: int
    from_link: bytes
    to_link: bytes
    to_skeleton: bytes | None
    boundary: Boundary
    replaced_tokens: int
    messages: tuple[LogMessage, ...] = ()
    """What is to be summarized …"""
    folded: tuple[Chunk, ...] = ()
    """… or the chunks that are folded."""
    style: Style = "additive"
    base: Chunk | None = None
    """The summary before this one: read in place of the log that it covers by a rolling summary, known to be there by a
    checkpoint."""
    prefix: Sequence[bytes] = ()
    meant: int = 0
    """How many of the prefix's last messages are in the range; 0: as many as there are messages."""
    found_after_seq: int = 0
    """A stored chunk that ends beyond this, and begins where the range does, is as good as a new one."""

    @property
    def key(self) -> str:
        """Names the range among all of a root: two ranges with the same links hold the same messages."""
        return f"{self.lease_key}:{self.to_link.hex()}"

    def is_covered_by(self, chunk: Chunk) -> bool:
        """Whether a stored chunk is over exactly this range, and a fold exactly if this is one."""
        ends = (chunk.from_link, chunk.to_link)
        return ends == (self.from_link, self.to_link) and bool(chunk.folds) == bool(self.folded)

    @property
    def lease_key(self) -> str:
        """One holder for all ranges that begin at the same place, whatever their end."""
        return lease_key_of(self.from_link, is_fold=bool(self.folded))


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What came of a job."""

    chunks: tuple[Chunk, ...]
    """In the order of the job's ranges; a range for which nothing could be made has none."""
    ran: bool
    """Whether a summary was written, or waited for, on behalf of this job."""
    outcome: Outcome
    """`made` by a model, `mechanical` at least in part, all `found` in the store, or `none`."""
    duration_ms: int = 0
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    """Sum over the summary calls of this job."""
    warnings: tuple[str, ...] = ()


def spots_of(job: CompactionJob) -> list[Spot]:
    """Where each range of a job begins and ends."""
    return [_fold_spot(job, wanted) if wanted.folds else _spot(job, wanted) for wanted in job.ranges]


def _spot(job: CompactionJob, wanted: Range) -> Spot:
    tail = job.tail
    last = tail.message(wanted.to_seq - 1)
    boundary = tail.boundary(wanted.to_seq)
    base = next((chunk for chunk in job.folded if chunk.id == wanted.base), None) if wanted.base else None
    rolls = base if wanted.style == "recursive" else None
    read_from_seq = rolls.to_seq if rolls else wanted.from_seq
    assert tail.start_seq <= read_from_seq < wanted.to_seq <= tail.end_seq, "the tail does not hold the range"
    unread_tokens = rolls.tokens if rolls else 0
    return Spot(
        from_seq=rolls.from_seq if rolls else wanted.from_seq,
        from_link=rolls.from_link if rolls else _link_before(job, wanted.from_seq),
        to_link=last.link,
        to_skeleton=last.skeleton if last.in_skeleton else None,
        boundary=boundary,
        replaced_tokens=unread_tokens + boundary.tokens_total - tail.total_before(read_from_seq),
        messages=tuple(tail.message(seq) for seq in range(read_from_seq, wanted.to_seq)),
        style=wanted.style,
        base=base,
        prefix=job.prefixes.get(wanted.to_seq, ()),
        meant=job.meant.get(wanted.to_seq, 0),
        found_after_seq=_found_after(job, wanted, base),
    )


def _link_before(job: CompactionJob, seq: int) -> bytes:
    return job.start_link if seq == job.tail.start_seq else job.tail.message(seq - 1).link


def _found_after(job: CompactionJob, wanted: Range, base: Chunk | None) -> int:
    """Others may have planned with a message more or less, so the end of a stretch is not looked at closely. A summary
    of everything so far begins where all before it began: it must reach beyond the last, or be the very one."""
    if wanted.style == "additive":
        return job.tail.start_seq
    return base.to_seq if base else wanted.to_seq - 1


def _fold_spot(job: CompactionJob, wanted: Range) -> Spot:
    """A fold spans the chunks that it names, from the beginning of the first to the end of the last."""
    named = set(wanted.folds)
    folded = sorted((chunk for chunk in job.folded if chunk.id in named), key=lambda chunk: chunk.to_seq)
    first, last = folded[0], folded[-1]
    return Spot(
        from_seq=first.from_seq,
        from_link=first.from_link,
        to_link=last.to_link,
        to_skeleton=last.to_skeleton,
        boundary=Boundary(last.to_seq, last.tokens_total, last.anchor_seq, last.anchor_tokens, last.through_turn),
        replaced_tokens=sum(chunk.tokens for chunk in folded),
        folded=tuple(folded),
        prefix=job.prefixes.get(wanted.to_seq, ()),
        found_after_seq=last.to_seq,
    )


def summed(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Usage objects added up, details included; None for none."""
    if not usages:
        return None
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, Mapping):
                total[name] = summed([total.get(name) or {}, value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total
