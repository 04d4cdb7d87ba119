"""Old turns become one additive chunk, once, whoever asks.

The work for a range runs in a task that this room owns: a caller that goes away does not stop it, a second caller for
the same range waits for the same task, and another process is kept out by a lease on the range.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from app.compaction.compaction_job import (
    CompactionJob,
    CompactionOutcome,
    CompactionResult,
    SummarySource,
    build_sources,
    sum_usages,
)
from app.compaction.summarizer.summarizer import SummaryGenerator
from app.compaction.summary_maker import RangeResult, SummaryMaker
from app.context.view.view_messages import ViewTokenCounter
from app.conversation.messages import Summary
from app.observability.metric_families import COMPACTION_SECONDS, COMPACTIONS
from app.observability.metrics import NO_METRICS, Metrics
from app.store.contract import Store
from app.store.leases import LeaseKeeper

log = logging.getLogger(__name__)

MAX_PARALLEL_SUMMARIES = 4
"""Summary calls at a time on behalf of one job."""
RESULT_CACHE_SECONDS = 30.0
"""How long a chunk that could not be stored, or the failure to make one, stands for its range."""
MAX_CACHED_RESULTS = 1024
PRECOMPACTION_PREFIX, REMAKE_PREFIX = "ahead:", "again:"
"""Begin the names of ranges that are worked on in the background."""
METRIC_TRIGGERS: Final = {PRECOMPACTION_PREFIX: "ahead", REMAKE_PREFIX: "again"}
DRAIN_TIMEOUT_SECONDS = 10.0
LONG_TAIL_MESSAGES = 1_000
"""The ranges of longer tails are looked up off the event loop."""

RangeKey = tuple[str, str]
MakeRangeSummary = Callable[[CompactionJob, SummarySource, Callable[[], None]], Awaitable[RangeResult]]
MakeSummary = Callable[[Callable[[], None]], Awaitable[RangeResult]]


@dataclass(slots=True)
class _StartListener:
    """A caller that is told when a model is asked on its behalf: at most once, and never after it has gone."""

    callback: Callable[[], None] | None

    def notify(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


@dataclass(slots=True)
class _SharedWork:
    """A range of a conversation being worked on, since `started_at`."""

    conversation_id: str
    started_at: float
    task: asyncio.Task[RangeResult] = field(init=False)
    has_called_model: bool = False
    listeners: list[_StartListener] = field(default_factory=list)

    def notify_start(self) -> None:
        self.has_called_model = True
        for listener in self.listeners:
            listener.notify()

    def add_listener(self, listener: _StartListener) -> None:
        self.listeners.append(listener)
        if self.has_called_model:
            listener.notify()


def _read_utc_now() -> datetime:
    return datetime.now(UTC)


def new_summary_id() -> str:
    return f"sum_{uuid.uuid4().hex}"


class Compactor:
    """Makes chunks, each range once at a time.

    Args:
        store: where chunks are kept.
        leases: keeps other processes from making the same chunk.
        summary_generator: asks the model.
        counter_for: the token counter of an encoding.
        clock: the time that chunks are dated with, aware.
        new_id: makes chunk ids.
        monotonic: seconds, for durations and for how long failures are remembered.
    """

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        summary_generator: SummaryGenerator,
        counter_for: Callable[[str], ViewTokenCounter],
        clock: Callable[[], datetime] = _read_utc_now,
        new_id: Callable[[], str] = new_summary_id,
        monotonic: Callable[[], float] = time.monotonic,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._maker = SummaryMaker(
            store, leases, summary_generator, counter_for=counter_for, clock=clock, new_id=new_id
        )
        self._monotonic = monotonic
        self._metrics = metrics
        self._running_work: dict[RangeKey, _SharedWork] = {}
        self._cached_results: dict[RangeKey, tuple[float, RangeResult]] = {}

    async def compact(
        self,
        job: CompactionJob,
        on_start: Callable[[], None] | None = None,
        on_summary: Callable[[Summary], None] | None = None,
    ) -> CompactionResult:
        """Chunks for the ranges of a job, made or found. A failing model is no failure of the job.

        Args:
            on_start: called before the first summary call that the job waits for, exactly once; not at all when
                everything is there already.
            on_summary: called with each chunk once it is there.
        """
        return await self._run_job(job, self._maker.make_summary, "", on_start, on_summary)

    async def rewrite_summary(self, job: CompactionJob, source: SummarySource, summary: Summary) -> Summary:
        """Another text by a model for a stored chunk, as its next revision.

        Args:
            source: the chunk's place, with what there is to read.

        Raises:
            ConversationBusy: somebody else is at it.
            UpstreamUnavailable: no model gave a summary that can be used; nothing changed.
            HeadMoved: the chunk was revised or deleted meanwhile; nothing changed.
            StoreUnavailable: the summary could not be stored.
        """
        return await self._maker.rewrite_summary(job, source, summary)

    async def precompact(self, job: CompactionJob) -> CompactionResult:
        """Chunks for the ranges of a job that nobody waits for yet: a model's, or none."""
        return await self._run_job(job, self._maker.precompact, PRECOMPACTION_PREFIX, None)

    async def wait_for_precompaction(
        self, conversation_id: str, on_start: Callable[[], None] | None
    ) -> CompactionResult | None:
        """The chunks of a conversation that are being made ahead, once they are there; None where none are.

        Args:
            on_start: called if a model is being asked for one, at most once.
        """
        precompactions = [
            flight
            for (_, name), flight in self._running_work.items()
            if name.startswith(PRECOMPACTION_PREFIX) and flight.conversation_id == conversation_id
        ]
        if not precompactions:
            return None
        started_at, listener = self._monotonic(), _StartListener(on_start)
        for work in precompactions:
            work.add_listener(listener)
        try:
            outcomes = await asyncio.gather(
                *(asyncio.shield(flight.task) for flight in precompactions), return_exceptions=True
            )
        finally:
            listener.callback = None
        results = [
            range_result for range_result in outcomes if isinstance(range_result, RangeResult)
        ]  # one that failed is no failure of the caller's
        return _build_result(results, round((self._monotonic() - started_at) * 1000))

    async def remake_mechanical(self, job: CompactionJob) -> CompactionResult:
        """A model's summaries for those ranges of a job whose stored chunk is mechanical, each kept under its id.

        Meant for the background: `made` where a model is back, otherwise what is there stays.
        """
        return await self._run_job(job, self._maker.remake_mechanical, REMAKE_PREFIX, None)

    async def _run_job(
        self,
        job: CompactionJob,
        make: MakeRangeSummary,
        prefix: str,
        on_start: Callable[[], None] | None,
        on_summary: Callable[[Summary], None] | None = None,
    ) -> CompactionResult:
        """Have the chunk of each range made, or wait for who is at it; `prefix` tells kinds of work apart."""
        started_at = self._monotonic()
        listener = _StartListener(on_start)
        slots = asyncio.Semaphore(MAX_PARALLEL_SUMMARIES)
        is_long = len(job.log_tail.messages) > LONG_TAIL_MESSAGES
        sources = await asyncio.to_thread(build_sources, job) if is_long else build_sources(job)
        works = [
            self._join_or_start(
                job, (job.root, prefix + _build_range_name(job, source)), partial(make, job, source), listener, slots
            )
            for source in sources
        ]
        if on_summary is not None:
            for work in works:
                work.task.add_done_callback(partial(_notify_summary, on_summary))
        try:
            results = await asyncio.gather(*(asyncio.shield(flight.task) for flight in works))
        finally:
            listener.callback = None
        return _build_result(results, round((self._monotonic() - started_at) * 1000))

    async def aclose(self, timeout_seconds: float = DRAIN_TIMEOUT_SECONDS) -> None:
        """Leave off what nobody waits for, wait for what else is running, then cancel what is left."""
        for (_, name), work in self._running_work.items():
            if name.startswith((PRECOMPACTION_PREFIX, REMAKE_PREFIX)):
                work.task.cancel()
        running = [flight.task for flight in self._running_work.values()]
        if not running:
            return
        _, late_tasks = await asyncio.wait(running, timeout=timeout_seconds)
        for task in late_tasks:
            task.cancel()
        if late_tasks:
            await asyncio.wait(late_tasks)

    def _join_or_start(
        self, job: CompactionJob, key: RangeKey, make: MakeSummary, listener: _StartListener, slots: asyncio.Semaphore
    ) -> _SharedWork:
        """The flight of a range: the running one, or a new one."""
        shared_work = self._running_work.get(key)
        if shared_work is None:
            shared_work = self._running_work[key] = _SharedWork(job.conversation_id, self._monotonic())
            self._metrics.compacting.add()
            coroutine = self._run_work(key, make, shared_work, slots)
            shared_work.task = asyncio.create_task(coroutine)  # noqa: TID251  owned by the flight; aclose awaits and cancels it
            shared_work.task.add_done_callback(lambda task: self._finish_work(key, shared_work, task))
        shared_work.add_listener(listener)
        return shared_work

    async def _run_work(
        self, key: RangeKey, make: MakeSummary, work: _SharedWork, slots: asyncio.Semaphore
    ) -> RangeResult:
        cached_result = self._find_cached_result(key)
        if cached_result is not None:
            return cached_result
        async with slots:
            return await make(work.notify_start)

    def _finish_work(self, key: RangeKey, work: _SharedWork, task: asyncio.Task[RangeResult]) -> None:
        """Forget a finished flight, and remember for a while what could not be stored."""
        del self._running_work[key]
        self._record_metrics(key, work, task)
        if task.cancelled() or task.exception() is not None:
            return
        range_result = task.result()
        if range_result.warning:
            log.info("a range of the log has no summary of a model's: %s", range_result.warning)
        if range_result.is_stored:
            return
        while len(self._cached_results) >= MAX_CACHED_RESULTS:
            del self._cached_results[next(iter(self._cached_results))]
        cached_result = RangeResult(
            range_result.range_summary,
            "found" if range_result.range_summary else "none",
            is_stored=False,
            warning=range_result.warning,
        )
        self._cached_results.setdefault(key, (self._monotonic() + RESULT_CACHE_SECONDS, cached_result))

    def _record_metrics(self, key: RangeKey, work: _SharedWork, task: asyncio.Task[RangeResult]) -> None:
        self._metrics.compacting.add(-1)
        if not self._metrics.is_on:
            return
        outcome = "cancelled" if task.cancelled() else "failed" if task.exception() else task.result().outcome
        trigger = next((name for prefix, name in METRIC_TRIGGERS.items() if key[1].startswith(prefix)), "request")
        self._metrics.counter_series(COMPACTIONS, outcome, trigger).add()
        self._metrics.histogram_series(COMPACTION_SECONDS, outcome).observe(self._monotonic() - work.started_at)

    def _find_cached_result(self, key: RangeKey) -> RangeResult | None:
        """What a recent attempt at this range came to, if that could not be stored."""
        if key not in self._cached_results:
            return None
        until, range_result = self._cached_results[key]
        if self._monotonic() < until:
            return range_result
        del self._cached_results[key]
        return None


def _build_range_name(job: CompactionJob, source: SummarySource) -> str:
    """Names a range among all of a root, with what of the log is deleted: nobody joins who knows of more."""
    deleted = job.conversation.redacted_seqs if job.conversation else ()
    return f"{source.range_key}:{','.join(map(str, deleted))}"


def _notify_summary(on_summary: Callable[[Summary], None], task: asyncio.Task[RangeResult]) -> None:
    if not task.cancelled() and task.exception() is None and (summary := task.result().range_summary) is not None:
        on_summary(summary)


def _build_result(results: Sequence[RangeResult], duration_ms: int) -> CompactionResult:
    summaries = [range_result.generated for range_result in results if range_result.generated is not None]
    ran = any(made.outcome in {"made", "mechanical"} for made in results)
    return CompactionResult(
        summaries=tuple(made.range_summary for made in results if made.range_summary is not None),
        has_run=ran,
        outcome=_combine_outcomes({made.outcome for made in results}),
        duration_ms=duration_ms if ran else 0,
        model=summaries[0].model if summaries else None,
        usage=sum_usages([generated.usage for generated in summaries if generated.usage]),
        warnings=tuple(dict.fromkeys(made.warning for made in results if made.warning)),
    )


def _combine_outcomes(outcomes: set[CompactionOutcome]) -> CompactionOutcome:
    """The outcome of a job from those of its ranges: the one that says most."""
    ranked: tuple[CompactionOutcome, ...] = ("mechanical", "made", "found", "none")
    return next((outcome for outcome in ranked if outcome in outcomes), "none")
